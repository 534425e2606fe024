-- What triggers were given is not looked up again.
--
-- Nothing that is refused, journaled, told or counted changes, for any statement that does not change its own rows once more
-- (by a function in its RETURNING, say: each of the two changes is now journaled as what it was). The triggers of the log of
-- payments fetched every new row from the table once or twice, though the transition table has all of it; an attempt's
-- answer asked for its intent, which the attempt had to show when it was sent; and functions in SQL that are called, not
-- written out, are parsed and planned at every call, where PL/pgSQL keeps its plans. Functions alone are replaced: no table
-- is locked.

-- Called for every batch.
CREATE OR REPLACE FUNCTION tally.order_counted(counted text, more bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO tally.order_count AS c (slot, name, value) SELECT pg_backend_pid() % 64, counted, more WHERE more > 0
        ON CONFLICT (slot, name) DO UPDATE SET value = c.value + excluded.value;
END $$;

CREATE OR REPLACE FUNCTION tally.here(OUT system bigint, OUT timeline integer, OUT database oid)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
BEGIN
    SELECT s.system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer, d.oid
      INTO system, timeline, database
      FROM pg_control_system() AS s, pg_database AS d WHERE d.datname = current_database();
END $$;

-- As before. That an answer is of an intent its tenant has, the attempt has shown when it was sent: it stays what it is
-- (answered_once), and intents do not go away.
CREATE OR REPLACE FUNCTION tally.attempt_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    journaled bigint;
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO tally.journal (tenant_id, subject, body, digest)
        SELECT s.tenant_id, 'attempt.sent', s.body, tally.journal_digest(t.name, 'attempt.sent', s.body)
          FROM (SELECT f.tenant_id, convert_to(jsonb_build_object(
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
        INSERT INTO tally.journal (tenant_id, subject, body, digest)
        SELECT s.tenant_id, 'attempt.answered', s.body, tally.journal_digest(t.name, 'attempt.answered', s.body)
          FROM (SELECT f.tenant_id, convert_to(jsonb_build_object(
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

-- As before; of the rows that are new every column is at hand.
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
    INSERT INTO tally.journal (tenant_id, subject, body, digest)
    SELECT s.tenant_id, s.subject, s.body, tally.journal_digest(t.name, s.subject, s.body)
      FROM (SELECT l.tenant_id, lower(l.operation_type) || '.pending' AS subject,
                   tally.payment_step(l, NULL, l.created_at) AS body
              FROM fresh l
              -- Else the planner writes the expression of body out three times.
            OFFSET 0) AS s
      JOIN tally.tenant t USING (tenant_id);
    RETURN NULL;
END $$;

-- As before. What is done of refunds alone is asked only where there are some. A body is made of steps alone, and a step
-- without one is refused by the journal's own CHECK.
CREATE OR REPLACE FUNCTION tally.payment_stepped() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    -- A FULL JOIN, and probes: as in orders_changed.
    INSERT INTO tally.journal (tenant_id, subject, body, digest)
    SELECT s.tenant_id, s.subject, s.body, tally.journal_digest(t.name, s.subject, s.body)
      FROM (SELECT l.tenant_id, lower(l.operation_type) || '.' || lower(l.status) AS subject, b.status <> l.status AS is_step,
                   CASE WHEN b.status <> l.status THEN tally.payment_step(l, b.status, l.completed_at) END AS body
              FROM fresh l
              FULL JOIN before b ON b.idempotency_key = l.idempotency_key AND b.tenant_id = l.tenant_id
            OFFSET 0) AS s
     CROSS JOIN LATERAL (SELECT t.name FROM tally.tenant t WHERE t.tenant_id = s.tenant_id OFFSET 0) AS t
     WHERE s.is_step;
    IF NOT EXISTS (SELECT 1 FROM fresh f WHERE f.operation_type = 'REFUND') THEN
        RETURN NULL;
    END IF;
    -- The outbox tells of each step of a refund, and those that are completed are timed.
    WITH step AS MATERIALIZED (
        SELECT l.tenant_id, l.subject, l.body,
               CASE WHEN l.was = 'PENDING' AND l.status = 'COMPLETED'
                    THEN greatest(extract(epoch FROM l.completed_at - r.received_at), 0)::float8 END AS took
          FROM (SELECT l.tenant_id, l.order_id, l.payment_intent_id, l.provider, l.status, l.completed_at, b.status AS was,
                       b.status <> l.status AND l.operation_type = 'REFUND' AS is_step,
                       lower(l.operation_type) || '.' || lower(l.status) AS subject,
                       CASE WHEN b.status <> l.status AND l.operation_type = 'REFUND'
                            THEN tally.payment_step(l, b.status, l.completed_at) END AS body
                  FROM fresh l
                  FULL JOIN before b ON b.idempotency_key = l.idempotency_key AND b.tenant_id = l.tenant_id
                OFFSET 0) AS l
          LEFT JOIN LATERAL (SELECT r.received_at FROM tally.payment_receipt r
                              WHERE l.status = 'COMPLETED' AND r.order_id = l.order_id AND r.tenant_id = l.tenant_id
                                AND r.payment_intent_id = l.payment_intent_id AND r.provider = l.provider
                             OFFSET 0) AS r ON true
         WHERE l.is_step
    ), told AS (
        INSERT INTO tally.outbox (tenant_id, topic, body) SELECT tenant_id, subject, body FROM step
    )
    INSERT INTO tally.compensation_time AS c (slot, le, count, seconds)
    SELECT pg_backend_pid() % 64, le, count(*), sum(took)
      FROM (SELECT took FROM step WHERE took IS NOT NULL) AS done
     CROSS JOIN LATERAL (SELECT min(b.le) AS le
                           FROM unnest('{1,2,5,10,30,60,300,900,3600,14400,86400,Infinity}'::float8[]) AS b (le)
                          WHERE done.took <= b.le) AS bucket
     GROUP BY le ORDER BY le
        ON CONFLICT (slot, le) DO UPDATE SET count = c.count + excluded.count, seconds = c.seconds + excluded.seconds;
    RETURN NULL;
END $$;
