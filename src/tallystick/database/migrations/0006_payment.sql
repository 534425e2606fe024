-- Payments: every charge and every refund that was ever asked of a provider, under its own key, for good.
--
-- A provider forgets a key after hours or days; this table never does. Whoever wants to charge an order or to give a
-- payment back inserts here first, and the indexes below say no to the second one: one live charge for an order, one
-- live refund for a payment, however many clicks, processes and years lie between.
--
-- What the statuses mean, of the money:
--
--   CHARGE  PENDING    it is, or is about to be, asked of the provider, and nobody has heard what became of it. Money may
--                      have moved. The only way on is an answer, or the provider's own books.
--           COMPLETED  the provider has the payment object payment_intent_id. Its money may have come, or still wait for
--                      the customer: whether the order is PAID is decided by the saga, from the provider's word about
--                      the money, never from this row.
--           FAILED     known for good: no money moved under this key, and none will. The next attempt has another key.
--   REFUND  PENDING    it is owed, and the provider's word that it is on its way has not come. Owned by the financial
--                      sweeper from here on.
--           COMPLETED  the provider has the refund refund_id of the payment payment_intent_id.
--           FAILED     the provider refused it for good, or it came back: a person must look.
--
--   PENDING --> COMPLETED --> FAILED     the provider's books show that the object has failed for good
--           --> FAILED

CREATE TABLE tally.payment_idempotency_log (
    tenant_id         integer NOT NULL,
    -- core/keys.py: charge_key or refund_key. The trigger below computes it again.
    idempotency_key   bytea NOT NULL CHECK (octet_length(idempotency_key) = 32),
    order_id          uuid NOT NULL,
    operation_type    text NOT NULL CHECK (operation_type IN ('CHARGE', 'REFUND')),
    -- Of a charge: the customer's tries after known final failures, from 1. Of a refund: its generation, from 0.
    attempt           integer NOT NULL CHECK (attempt >= 0),
    amount_micros     bigint NOT NULL CHECK (amount_micros > 0),
    currency          text COLLATE "C" NOT NULL CHECK (octet_length(currency) = 3),
    provider          text COLLATE "C" NOT NULL CHECK (octet_length(provider) BETWEEN 1 AND 40),
    -- The provider's id of the payment: of a charge once it is known, of a refund from the beginning.
    payment_intent_id text COLLATE "C" CHECK (octet_length(payment_intent_id) BETWEEN 1 AND 800),
    refund_id         text COLLATE "C" CHECK (octet_length(refund_id) BETWEEN 1 AND 800),
    status            text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'COMPLETED', 'FAILED')),
    -- Why it failed; or, while it is pending, why a person should look.
    reason            text,
    -- What the provider last said of it, as evidence: requests and the beginnings of answers, secrets taken out.
    provider_response bytea,
    -- In every later UPDATE: who lost his claim can no longer write.
    claim_number      integer NOT NULL DEFAULT 1 CHECK (claim_number >= 1),
    -- While it is pending: nobody asks or sends again before then.
    due_at            timestamptz NOT NULL,
    tries             integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    created_at        timestamptz NOT NULL,
    -- When it left PENDING, and again if it failed after that.
    completed_at      timestamptz,
    PRIMARY KEY (idempotency_key, tenant_id),
    CHECK ((status = 'PENDING') = (completed_at IS NULL)),
    CHECK (status <> 'FAILED' OR reason IS NOT NULL),
    CHECK (operation_type <> 'CHARGE' OR (attempt >= 1 AND refund_id IS NULL)),
    CHECK (operation_type <> 'REFUND' OR payment_intent_id IS NOT NULL),
    -- Completed without the provider's id would be a claim nobody could check.
    CHECK (status <> 'COMPLETED' OR CASE operation_type WHEN 'CHARGE' THEN payment_intent_id ELSE refund_id END IS NOT NULL)
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX one_live_charge ON tally.payment_idempotency_log (order_id, tenant_id)
    WHERE operation_type = 'CHARGE' AND status <> 'FAILED';
CREATE UNIQUE INDEX one_live_refund ON tally.payment_idempotency_log (payment_intent_id, provider, tenant_id)
    WHERE operation_type = 'REFUND' AND status <> 'FAILED';
-- An attempt is made once, at whichever provider; and how the charges of an order are found.
CREATE UNIQUE INDEX charge_attempt ON tally.payment_idempotency_log (order_id, tenant_id, attempt)
    WHERE operation_type = 'CHARGE';
CREATE INDEX order_refunds ON tally.payment_idempotency_log (order_id, tenant_id) WHERE operation_type = 'REFUND';
-- How an event of the provider's finds its payment.
CREATE INDEX payment_object ON tally.payment_idempotency_log (payment_intent_id) WHERE payment_intent_id IS NOT NULL;
-- All that workers look at, so their work does not grow with what is done.
CREATE INDEX payment_pending ON tally.payment_idempotency_log (operation_type, due_at) WHERE status = 'PENDING';

-- The keys of core/keys.py, over the names as they are written for people.
CREATE FUNCTION tally.charge_key(tenant text, l tally.payment_idempotency_log, token uuid) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN sha256('tallystick/key/1'::bytea || int4send(6) || 'charge'::bytea
        || tally.key_part('amount_micros', 'i', l.amount_micros::text)
        || tally.key_part('attempt', 'i', l.attempt::text)
        || tally.key_part('currency', 's', l.currency)
        || tally.key_part('order_id', 's', 'or_' || replace(l.order_id::text, '-', ''))
        || tally.key_part('provider', 's', l.provider)
        || tally.key_part('reservation_token', 's', 'rt_' || replace(token::text, '-', ''))
        || tally.key_part('tenant', 's', tenant));
CREATE FUNCTION tally.refund_key(tenant text, l tally.payment_idempotency_log) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN sha256('tallystick/key/1'::bytea || int4send(6) || 'refund'::bytea
        || tally.key_part('currency', 's', l.currency)
        || tally.key_part('generation', 'i', l.attempt::text)
        || tally.key_part('operation', 's', 'REFUND')
        || tally.key_part('payment_intent_id', 's', l.payment_intent_id)
        || tally.key_part('provider', 's', l.provider)
        || tally.key_part('tenant', 's', tenant));

-- The digest of core/audit.py.
CREATE FUNCTION tally.journal_digest(tenant text, subject text, body bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN sha256('tallystick/journal/1'::bytea
        || int4send(octet_length(tenant)) || convert_to(tenant, 'UTF8')
        || int4send(octet_length(subject)) || convert_to(subject, 'UTF8')
        || int4send(octet_length(body)) || body);

-- What is journaled of a step.
CREATE FUNCTION tally.payment_step(l tally.payment_idempotency_log, was text, at timestamptz) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
RETURN convert_to(jsonb_build_object(
        'order', l.order_id, 'key', encode(l.idempotency_key, 'hex'), 'attempt', l.attempt, 'provider', l.provider,
        'amount_micros', l.amount_micros, 'currency', l.currency, 'payment_intent_id', l.payment_intent_id,
        'refund_id', l.refund_id, 'status', l.status, 'was', was, 'reason', l.reason, 'at', at)::text, 'UTF8');

-- New rows, whoever inserts them. Set-based instead of foreign keys (decision 0003): orders and intents cannot go away.
-- A charge is of its order, of all of it, while it may be paid, after the attempt before it failed for good, and its
-- intent with the exact request is there already: nothing can be sent that the log does not know.
CREATE FUNCTION tally.payment_logged() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    fault record;
BEGIN
    SELECT count(*) FILTER (WHERE o.id IS NULL) AS nowhere,
           count(*) FILTER (WHERE l.idempotency_key IS DISTINCT FROM CASE l.operation_type
               WHEN 'CHARGE' THEN tally.charge_key(t.name, l, o.reservation_token)
               ELSE tally.refund_key(t.name, l) END) AS keys,
           count(*) FILTER (WHERE l.status <> 'PENDING' OR l.operation_type = 'CHARGE' AND (
               l.amount_micros <> o.amount_micros OR l.currency <> o.currency OR l.payment_intent_id IS NOT NULL)) AS other,
           count(*) FILTER (WHERE l.operation_type = 'CHARGE' AND (
               o.status <> 'PENDING' OR l.created_at >= o.expires_at)) AS ended,
           count(*) FILTER (WHERE l.operation_type = 'CHARGE' AND l.attempt > 1
               AND before.status IS DISTINCT FROM 'FAILED') AS early,
           count(*) FILTER (WHERE l.operation_type = 'CHARGE' AND i.key IS NULL) AS unasked
      INTO fault
      FROM fresh f
     CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                          WHERE l.idempotency_key = f.idempotency_key AND l.tenant_id = f.tenant_id OFFSET 0) AS l
      LEFT JOIN LATERAL (SELECT * FROM tally.orders o
                          WHERE o.tenant_id = f.tenant_id AND o.id = f.order_id OFFSET 0) AS o ON true
      LEFT JOIN LATERAL (SELECT t.name FROM tally.tenant t WHERE t.tenant_id = f.tenant_id OFFSET 0) AS t ON true
      LEFT JOIN LATERAL (SELECT i.key FROM tally.intent i
                          WHERE i.tenant_id = f.tenant_id AND i.key = f.idempotency_key AND i.provider = f.provider
                         OFFSET 0) AS i ON true
      LEFT JOIN LATERAL (SELECT b.status FROM tally.payment_idempotency_log b
                          WHERE f.attempt > 1 AND b.operation_type = 'CHARGE' AND b.order_id = f.order_id
                            AND b.tenant_id = f.tenant_id AND b.attempt = f.attempt - 1 OFFSET 0) AS before ON true;
    IF fault.nowhere <> 0 THEN
        RAISE EXCEPTION 'tally: % payment(s) of orders that their tenant does not have', fault.nowhere
              USING ERRCODE = 'TS003';
    END IF;
    IF fault.keys <> 0 OR fault.other <> 0 THEN
        RAISE EXCEPTION 'tally: % payment(s) have a key, an amount or a beginning that is not their content''s',
                        greatest(fault.keys, fault.other) USING ERRCODE = 'TS005';
    END IF;
    IF fault.ended <> 0 OR fault.early <> 0 OR fault.unasked <> 0 THEN
        RAISE EXCEPTION 'tally: a charge needs an order that may be paid (% not), a known final failure before it '
                        '(% not), and its committed intent (% not)', fault.ended, fault.early, fault.unasked
              USING ERRCODE = 'TS004';
    END IF;
    INSERT INTO tally.journal (tenant_id, subject, body, digest)
    SELECT s.tenant_id, s.subject, s.body, tally.journal_digest(t.name, s.subject, s.body)
      FROM (SELECT l.tenant_id, lower(l.operation_type) || '.pending' AS subject,
                   tally.payment_step(l, NULL, l.created_at) AS body
              FROM fresh f
             CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                                  WHERE l.idempotency_key = f.idempotency_key AND l.tenant_id = f.tenant_id
                                 OFFSET 0) AS l
              -- Else the planner writes the expression of body out three times.
            OFFSET 0) AS s
      JOIN tally.tenant t USING (tenant_id);
    RETURN NULL;
END $$;
CREATE TRIGGER payment_logged AFTER INSERT ON tally.payment_idempotency_log
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.payment_logged();

CREATE FUNCTION tally.payment_stepped() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO tally.journal (tenant_id, subject, body, digest)
    SELECT s.tenant_id, s.subject, s.body, tally.journal_digest(t.name, s.subject, s.body)
      FROM (SELECT l.tenant_id, lower(l.operation_type) || '.' || lower(l.status) AS subject,
                   tally.payment_step(l, b.status, l.completed_at) AS body
              FROM fresh f
              JOIN before b ON b.idempotency_key = f.idempotency_key AND b.tenant_id = f.tenant_id
                           AND b.status <> f.status
             CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                                  WHERE l.idempotency_key = f.idempotency_key AND l.tenant_id = f.tenant_id
                                 OFFSET 0) AS l
            OFFSET 0) AS s
      JOIN tally.tenant t USING (tenant_id);
    RETURN NULL;
END $$;
CREATE TRIGGER payment_stepped AFTER UPDATE ON tally.payment_idempotency_log
    REFERENCING OLD TABLE AS before NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.payment_stepped();

CREATE TRIGGER identity BEFORE UPDATE ON tally.payment_idempotency_log FOR EACH ROW
    WHEN (old.tenant_id <> new.tenant_id OR old.idempotency_key <> new.idempotency_key OR old.order_id <> new.order_id
          OR old.operation_type <> new.operation_type OR old.attempt <> new.attempt
          OR old.amount_micros <> new.amount_micros OR old.currency <> new.currency OR old.provider <> new.provider
          OR old.created_at <> new.created_at
          OR (old.payment_intent_id IS NOT NULL AND new.payment_intent_id IS DISTINCT FROM old.payment_intent_id)
          OR (old.refund_id IS NOT NULL AND new.refund_id IS DISTINCT FROM old.refund_id))
    EXECUTE FUNCTION tally.refuse_change('what was asked of a provider, and what it made of it, never changes');
CREATE TRIGGER transition BEFORE UPDATE ON tally.payment_idempotency_log FOR EACH ROW
    WHEN (old.status <> new.status AND (old.status = 'FAILED' OR new.status = 'PENDING'))
    EXECUTE FUNCTION tally.refuse_change('that is no step of a payment');
CREATE TRIGGER fence BEFORE UPDATE ON tally.payment_idempotency_log FOR EACH ROW
    WHEN (new.claim_number < old.claim_number)
    EXECUTE FUNCTION tally.refuse_change('a claim is never taken back');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.payment_idempotency_log
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a key that is forgotten could be charged or refunded again');

GRANT SELECT ON tally.payment_idempotency_log TO tallystick_reader;
ALTER TABLE tally.payment_idempotency_log ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON tally.payment_idempotency_log FOR SELECT TO tallystick_reader
    USING (tenant_id = (SELECT tally.current_tenant()));
