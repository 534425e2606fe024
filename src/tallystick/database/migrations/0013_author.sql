-- Who did it.
--
-- Operations, changes of accounts, keys made and revoked stood in the journal without anybody's name. Every row has an author
-- now. A transaction of one author says so when it begins (SET LOCAL tally.author), and whatever is journaled in it is his:
-- no statement has to remember. A batch of many callers has an author in each row, and the triggers write that one.
-- What says nothing is code of the release before this one. Columns and functions alone: nothing is rewritten.

ALTER TABLE tally.journal ADD COLUMN author text NOT NULL DEFAULT 'unknown/earlier release';
ALTER TABLE tally.operation ADD COLUMN author text NOT NULL DEFAULT 'unknown/earlier release';
ALTER TABLE tally.attempt ADD COLUMN author text NOT NULL DEFAULT 'unknown/earlier release';
ALTER TABLE tally.payment_idempotency_log ADD COLUMN author text NOT NULL DEFAULT 'unknown/earlier release';

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['journal', 'operation', 'attempt', 'payment_idempotency_log'] LOOP
        EXECUTE format('ALTER TABLE tally.%I ALTER COLUMN author SET DEFAULT '
                       'coalesce(nullif(current_setting(''tally.author'', true), ''''), ''unknown/earlier release'')', name);
    END LOOP;
END $$;

-- As before, with the author of each operation.
CREATE OR REPLACE FUNCTION tally.operation_recorded() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO tally.journal (tenant_id, subject, operation_id, author, digest)
    SELECT f.tenant_id, 'operation', f.id, f.author,
           sha256('tallystick/journal/1'::bytea || t.prefix || int4send(octet_length(f.request)) || f.request
                  || int4send(octet_length(f.body)) || f.body)
      FROM (SELECT tenant_id, int4send(octet_length(name)) || convert_to(name, 'UTF8')
                              || int4send(9) || 'operation'::bytea AS prefix FROM tally.tenant) AS t
      JOIN fresh f USING (tenant_id);
    INSERT INTO tally.outbox (tenant_id, topic, operation_id)
    SELECT tenant_id, 'operation.committed', id FROM fresh;
    RETURN NULL;
END $$;

-- As before: who sent it; and an answer is the provider's own word, whoever wrote it down.
CREATE OR REPLACE FUNCTION tally.attempt_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    journaled bigint;
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO tally.journal (tenant_id, subject, body, author, digest)
        SELECT s.tenant_id, 'attempt.sent', s.body, s.author, tally.journal_digest(t.name, 'attempt.sent', s.body)
          FROM (SELECT f.tenant_id, f.author, convert_to(jsonb_build_object(
                           'provider', f.provider, 'key', encode(f.key, 'hex'), 'number', f.number,
                           'purpose', i.purpose, 'account', i.account, 'instruction', encode(sha256(i.instruction), 'hex'),
                           'first_sent_at', i.first_sent_at, 'sent_at', f.sent_at,
                           'not_after', f.not_after)::text, 'UTF8') AS body
                  FROM fresh f
                 CROSS JOIN LATERAL (SELECT i.purpose, i.account, i.instruction, i.first_sent_at FROM tally.intent i
                                      WHERE i.tenant_id = f.tenant_id AND i.key = f.key AND i.provider = f.provider
                                     OFFSET 0) AS i
                  -- Else the planner writes the expression of body out three times, and builds the JSON three times.
                 OFFSET 0) AS s
          JOIN tally.tenant t USING (tenant_id);
    ELSE
        INSERT INTO tally.journal (tenant_id, subject, body, author, digest)
        SELECT s.tenant_id, 'attempt.answered', s.body, 'provider/' || s.provider,
               tally.journal_digest(t.name, 'attempt.answered', s.body)
          FROM (SELECT f.tenant_id, f.provider, convert_to(jsonb_build_object(
                           'provider', f.provider, 'key', encode(f.key, 'hex'), 'number', f.number,
                           'answer', f.answer, 'code', f.code, 'provider_id', f.provider_id,
                           'evidence', encode(sha256(f.evidence), 'hex'),
                           'answered_at', f.answered_at)::text, 'UTF8') AS body
                  FROM fresh f
                 OFFSET 0) AS s
          JOIN tally.tenant t USING (tenant_id);
    END IF;
    GET DIAGNOSTICS journaled = ROW_COUNT;
    IF journaled <> (SELECT count(*) FROM fresh) THEN
        RAISE EXCEPTION 'tally: an attempt of an intent that its tenant does not have' USING ERRCODE = 'TS003';
    END IF;
    RETURN NULL;
END $$;

-- A step with an author of its own, in a batch of many.
CREATE FUNCTION tally.journal_step(tenant integer, subject text, body bytea, author text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO tally.journal (tenant_id, subject, body, author, digest)
    SELECT tenant, journal_step.subject, journal_step.body, journal_step.author,
           tally.journal_digest(t.name, journal_step.subject, journal_step.body)
      FROM tally.tenant t WHERE t.tenant_id = tenant;
END $$;

-- As before, with the author of each charge and refund.
CREATE OR REPLACE FUNCTION tally.payment_logged() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    fault record;
BEGIN
    SELECT count(*) FILTER (WHERE o.id IS NULL) AS nowhere,
           count(*) FILTER (WHERE l.idempotency_key IS DISTINCT FROM CASE l.operation_type
               WHEN 'CHARGE' THEN tally.charge_key(t.name, l, o.reservation_token)
               ELSE tally.refund_key(t.name, l) END) AS keys,
           count(*) FILTER (WHERE l.status <> 'PENDING' OR CASE l.operation_type
               WHEN 'CHARGE' THEN l.amount_micros <> o.amount_micros OR l.currency <> o.currency
                                  OR l.payment_intent_id IS NOT NULL
               ELSE l.refund_id IS NOT NULL
                    OR (r.amount_micros, r.currency, r.fate) IS DISTINCT FROM (l.amount_micros, l.currency, 'REFUND')
               END) AS other,
           count(*) FILTER (WHERE l.operation_type = 'CHARGE' AND (
               o.status <> 'PENDING' OR l.created_at >= o.expires_at)) AS ended,
           count(*) FILTER (WHERE l.attempt > CASE l.operation_type WHEN 'CHARGE' THEN 1 ELSE 0 END
               AND before.status IS DISTINCT FROM 'FAILED') AS early,
           count(*) FILTER (WHERE i.key IS NULL) AS unasked
      INTO fault
      FROM fresh l
      LEFT JOIN LATERAL (SELECT o.id, o.reservation_token, o.amount_micros, o.currency, o.status, o.expires_at
                           FROM tally.orders o WHERE o.tenant_id = l.tenant_id AND o.id = l.order_id OFFSET 0) AS o ON true
      LEFT JOIN LATERAL (SELECT t.name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t ON true
      LEFT JOIN LATERAL (SELECT i.key FROM tally.intent i
                          WHERE i.tenant_id = l.tenant_id AND i.key = l.idempotency_key AND i.provider = l.provider
                         OFFSET 0) AS i ON true
      LEFT JOIN LATERAL (SELECT r.amount_micros, r.currency, r.fate FROM tally.payment_receipt r
                          WHERE l.operation_type = 'REFUND' AND r.order_id = l.order_id AND r.tenant_id = l.tenant_id
                            AND r.payment_intent_id = l.payment_intent_id AND r.provider = l.provider OFFSET 0) AS r ON true
      LEFT JOIN LATERAL (SELECT b.status FROM tally.payment_idempotency_log b
                          WHERE l.operation_type = 'CHARGE' AND l.attempt > 1 AND b.operation_type = 'CHARGE'
                            AND b.order_id = l.order_id AND b.tenant_id = l.tenant_id AND b.attempt = l.attempt - 1
                          UNION ALL
                         SELECT b.status FROM tally.payment_idempotency_log b
                          WHERE l.operation_type = 'REFUND' AND l.attempt > 0 AND b.operation_type = 'REFUND'
                            AND b.payment_intent_id = l.payment_intent_id AND b.provider = l.provider
                            AND b.tenant_id = l.tenant_id AND b.attempt = l.attempt - 1
                         OFFSET 0) AS before ON true;
    IF fault.nowhere <> 0 THEN
        RAISE EXCEPTION 'tally: % payment(s) of orders that their tenant does not have', fault.nowhere
              USING ERRCODE = 'TS003';
    END IF;
    IF fault.keys <> 0 OR fault.other <> 0 THEN
        RAISE EXCEPTION 'tally: % payment(s) have a key, an amount or a beginning that is not their content''s',
                        greatest(fault.keys, fault.other) USING ERRCODE = 'TS005';
    END IF;
    IF fault.ended <> 0 OR fault.early <> 0 OR fault.unasked <> 0 THEN
        RAISE EXCEPTION 'tally: a charge needs an order that may be paid (% not), a charge or refund a known final failure '
                        'before it (% not), and its committed intent (% not)', fault.ended, fault.early, fault.unasked
              USING ERRCODE = 'TS004';
    END IF;
    INSERT INTO tally.journal (tenant_id, subject, body, author, digest)
    SELECT s.tenant_id, s.subject, s.body, s.author, tally.journal_digest(t.name, s.subject, s.body)
      FROM (SELECT l.tenant_id, l.author, lower(l.operation_type) || '.pending' AS subject,
                   tally.payment_step(l, NULL, l.created_at) AS body
              FROM fresh l
              -- Else the planner writes the expression of body out three times.
            OFFSET 0) AS s
      JOIN tally.tenant t USING (tenant_id);
    RETURN NULL;
END $$;

-- Keys belong to people or services, by name, and making and revoking one is journaled like any other step. Those that were
-- there belong to nobody known, and can approve nothing.
ALTER TABLE tally.api_key ADD COLUMN owner text NOT NULL DEFAULT 'unknown'
    CHECK (octet_length(owner) BETWEEN 1 AND 200 AND owner !~ '[/[:cntrl:]]');
GRANT SELECT (owner) ON tally.api_key TO tallystick_reader;
CREATE FUNCTION tally.key_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM tally.journal_step(f.tenant_id, CASE WHEN f.revoked_at IS NULL THEN 'key.created' ELSE 'key.revoked' END,
                               convert_to(jsonb_build_object('prefix', f.prefix, 'role', f.role, 'owner', f.owner,
                                                             'created_at', f.created_at,
                                                             'revoked_at', f.revoked_at)::text, 'UTF8')) FROM fresh f;
    RETURN NULL;
END $$;
CREATE TRIGGER made_journaled AFTER INSERT ON tally.api_key
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.key_journaled();
CREATE TRIGGER changed_journaled AFTER UPDATE ON tally.api_key
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.key_journaled();
-- Whom a key speaks for never changes: another person gets another key.
CREATE TRIGGER identity BEFORE UPDATE ON tally.api_key FOR EACH ROW
    WHEN (old.tenant_id <> new.tenant_id OR old.prefix <> new.prefix OR old.digest <> new.digest OR old.role <> new.role
          OR old.owner <> new.owner OR old.created_at <> new.created_at
          OR (old.revoked_at IS NOT NULL AND new.revoked_at IS DISTINCT FROM old.revoked_at))
    EXECUTE FUNCTION tally.refuse_change('whom a key speaks for never changes');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.api_key
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('the journal names keys by their prefix');

-- A second person is another person, not another key: what stands before the stroke is compared. (What an earlier release
-- wrote has no stroke, and is compared whole, as before.)
ALTER TABLE tally.approval DROP CONSTRAINT second_person;
ALTER TABLE tally.approval ADD CONSTRAINT second_person
    CHECK (split_part(decided_by, '/', 1) <> split_part(asked_by, '/', 1)) NOT VALID;
ALTER TABLE tally.approval VALIDATE CONSTRAINT second_person;
