-- A paid order is given back, whole or in parts.
--
-- Refunds were the saga's alone: of money that did not fit, all of it, once. Now a tenant gives back what was paid: any number
-- of parts, each under the caller's key, which enters the key that the provider sees (core/keys.py; without a part it is what
-- it was, to the byte). What all parts together may be is held where nobody can pass it: the receipt's row counts what is
-- asked for and not known to have failed, and a CHECK keeps it within what was taken. Two parts at once meet at that row.
--
-- The release before this one runs beside it: it makes no parts, and those that it finds it finishes like any refund.

CREATE TABLE tally.refund_request (
    tenant_id         integer NOT NULL,
    -- As the caller wrote it; of this route alone.
    key               text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
    order_id          uuid NOT NULL,
    -- Of the key (core/keys.py: refund_part).
    part              bytea NOT NULL CHECK (octet_length(part) = 32),
    provider          text COLLATE "C" NOT NULL,
    payment_intent_id text COLLATE "C" NOT NULL,
    -- As it was asked for; absent: all that was left, which is amount_micros.
    asked_micros      bigint CHECK (asked_micros > 0),
    amount_micros     bigint NOT NULL CHECK (amount_micros > 0),
    currency          text COLLATE "C" NOT NULL CHECK (octet_length(currency) = 3),
    reason            text NOT NULL CHECK (octet_length(reason) BETWEEN 1 AND 8000),
    -- The order's pieces are for sale again, by this commit.
    restock           boolean NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, key),
    CHECK (asked_micros IS NULL OR asked_micros = amount_micros)
);
CREATE INDEX refund_requests_of_order ON tally.refund_request (order_id, tenant_id, created_at);
-- What was given back for sale twice would be sold twice.
CREATE UNIQUE INDEX restocked_once ON tally.refund_request (order_id, tenant_id) WHERE restock;

ALTER TABLE tally.payment_idempotency_log
    -- Of a refund that was asked for; absent: the saga's, of all of it.
    ADD COLUMN part bytea,
    ADD CONSTRAINT part_is_a_digest CHECK (octet_length(part) = 32) NOT VALID;
ALTER TABLE tally.payment_receipt ADD COLUMN refunding_micros bigint NOT NULL DEFAULT 0;
ALTER TABLE tally.payment_receipt ADD CONSTRAINT refunds_within_payment
    CHECK (refunding_micros BETWEEN 0 AND amount_micros) NOT VALID;
CREATE TRIGGER refunding BEFORE UPDATE ON tally.payment_receipt FOR EACH ROW
    WHEN (pg_trigger_depth() = 0 AND old.refunding_micros <> new.refunding_micros)
    EXECUTE FUNCTION tally.refuse_change('what is given back of a payment is counted by its refunds alone');
CREATE TRIGGER refunding_at_birth BEFORE INSERT ON tally.payment_receipt FOR EACH ROW
    WHEN (new.refunding_micros <> 0)
    EXECUTE FUNCTION tally.refuse_change('nothing of a payment is given back before it is there');
CREATE TRIGGER part BEFORE UPDATE ON tally.payment_idempotency_log FOR EACH ROW
    WHEN (old.part IS DISTINCT FROM new.part)
    EXECUTE FUNCTION tally.refuse_change('what was asked of a provider never changes');

CREATE OR REPLACE FUNCTION tally.refund_key(tenant text, l tally.payment_idempotency_log) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
RETURN sha256('tallystick/key/1'::bytea || int4send(6) || 'refund'::bytea
        || tally.key_part('currency', 's', l.currency)
        || tally.key_part('generation', 'i', l.attempt::text)
        || tally.key_part('operation', 's', 'REFUND')
        || CASE WHEN l.part IS NULL THEN ''::bytea ELSE tally.key_part('part', 's', encode(l.part, 'hex')) END
        || tally.key_part('payment_intent_id', 's', l.payment_intent_id)
        || tally.key_part('provider', 's', l.provider)
        || tally.key_part('tenant', 's', tenant));

-- A request is of an order that is paid, by the payment that pays it; and what goes back for sale was sold. Journaled with its
-- reason: the refund's own steps have none.
CREATE FUNCTION tally.refunds_requested() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    fault record;
BEGIN
    SELECT count(*) FILTER (WHERE r.is_there IS NULL OR o.status IS DISTINCT FROM 'PAID') AS unpaid,
           count(*) FILTER (WHERE f.restock AND o.is_backordered) AS unsold
      INTO fault
      FROM fresh f
      LEFT JOIN LATERAL (SELECT o.status, o.is_backordered FROM tally.orders o
                          WHERE o.tenant_id = f.tenant_id AND o.id = f.order_id OFFSET 0) AS o ON true
      LEFT JOIN LATERAL (SELECT true AS is_there FROM tally.payment_receipt r
                          WHERE r.order_id = f.order_id AND r.tenant_id = f.tenant_id AND r.fate = 'PAID'
                            AND r.payment_intent_id = f.payment_intent_id AND r.provider = f.provider
                            AND r.currency = f.currency OFFSET 0) AS r ON true;
    IF fault.unpaid <> 0 OR fault.unsold <> 0 THEN
        RAISE EXCEPTION 'tally: a refund is of an order that is paid (% not), and gives back for sale what was sold (% not)',
                        fault.unpaid, fault.unsold USING ERRCODE = 'TS004';
    END IF;
    UPDATE tally.sku s SET sold = s.sold - w.quantity
      FROM (SELECT o.tenant_id, o.sku, sum(o.quantity) AS quantity FROM fresh f
              JOIN tally.orders o ON o.tenant_id = f.tenant_id AND o.id = f.order_id
             WHERE f.restock GROUP BY o.tenant_id, o.sku) AS w
     WHERE s.tenant_id = w.tenant_id AND s.sku = w.sku;
    PERFORM tally.journal_step(f.tenant_id, 'refund.requested', convert_to(jsonb_build_object(
                'order', f.order_id, 'key', f.key, 'part', encode(f.part, 'hex'), 'provider', f.provider,
                'payment_intent_id', f.payment_intent_id, 'amount_micros', f.amount_micros, 'currency', f.currency,
                'reason', f.reason, 'restock', f.restock, 'at', f.created_at)::text, 'UTF8')) FROM fresh f;
    RETURN NULL;
END $$;
CREATE TRIGGER refunds_requested AFTER INSERT ON tally.refund_request
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.refunds_requested();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.refund_request
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a key that is forgotten could be refunded again');
GRANT SELECT ON tally.refund_request TO tallystick_reader;
ALTER TABLE tally.refund_request ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON tally.refund_request FOR SELECT TO tallystick_reader
    USING (tenant_id = (SELECT tally.current_tenant()));

-- As before; and a part is of the payment that pays its order, as it was asked for, and counted with the others.
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
                    OR CASE WHEN l.part IS NULL
                            THEN (r.amount_micros, r.currency, r.fate) IS DISTINCT FROM (l.amount_micros, l.currency, 'REFUND')
                            ELSE (r.currency, r.fate, q.amount_micros) IS DISTINCT FROM (l.currency, 'PAID', l.amount_micros)
                       END
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
      LEFT JOIN LATERAL (SELECT q.amount_micros FROM tally.refund_request q
                          WHERE l.part IS NOT NULL AND q.order_id = l.order_id AND q.tenant_id = l.tenant_id
                            AND q.part = l.part OFFSET 0) AS q ON true
      LEFT JOIN LATERAL (SELECT b.status FROM tally.payment_idempotency_log b
                          WHERE l.operation_type = 'CHARGE' AND l.attempt > 1 AND b.operation_type = 'CHARGE'
                            AND b.order_id = l.order_id AND b.tenant_id = l.tenant_id AND b.attempt = l.attempt - 1
                          UNION ALL
                         SELECT b.status FROM tally.payment_idempotency_log b
                          WHERE l.operation_type = 'REFUND' AND l.attempt > 0 AND b.operation_type = 'REFUND'
                            AND b.payment_intent_id = l.payment_intent_id AND b.provider = l.provider
                            AND b.tenant_id = l.tenant_id AND b.attempt = l.attempt - 1
                            AND b.part IS NOT DISTINCT FROM l.part
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
    IF EXISTS (SELECT 1 FROM fresh WHERE part IS NOT NULL) THEN
        UPDATE tally.payment_receipt r SET refunding_micros = r.refunding_micros + p.micros
          FROM (SELECT tenant_id, order_id, payment_intent_id, provider, sum(amount_micros) AS micros
                  FROM fresh WHERE part IS NOT NULL GROUP BY tenant_id, order_id, payment_intent_id, provider) AS p
         WHERE r.order_id = p.order_id AND r.tenant_id = p.tenant_id AND r.payment_intent_id = p.payment_intent_id
           AND r.provider = p.provider;
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

-- As before; a part that failed no longer counts; and the time to compensate is that of the saga.
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
    -- What is known to have failed was not given back: it may be asked for again.
    IF EXISTS (SELECT 1 FROM fresh f WHERE f.part IS NOT NULL AND f.status = 'FAILED') THEN
        UPDATE tally.payment_receipt r SET refunding_micros = r.refunding_micros - p.micros
          FROM (SELECT f.tenant_id, f.order_id, f.payment_intent_id, f.provider, sum(f.amount_micros) AS micros
                  FROM fresh f JOIN before b ON b.idempotency_key = f.idempotency_key AND b.tenant_id = f.tenant_id
                 WHERE f.part IS NOT NULL AND f.status = 'FAILED' AND b.status <> 'FAILED'
                 GROUP BY f.tenant_id, f.order_id, f.payment_intent_id, f.provider) AS p
         WHERE r.order_id = p.order_id AND r.tenant_id = p.tenant_id AND r.payment_intent_id = p.payment_intent_id
           AND r.provider = p.provider;
    END IF;
    -- The outbox tells of each step of a refund, and those that are completed are timed.
    WITH step AS MATERIALIZED (
        SELECT l.tenant_id, l.subject, l.body,
               CASE WHEN l.was = 'PENDING' AND l.status = 'COMPLETED' AND l.part IS NULL
                    THEN greatest(extract(epoch FROM l.completed_at - r.received_at), 0)::float8 END AS took
          FROM (SELECT l.tenant_id, l.order_id, l.payment_intent_id, l.provider, l.part, l.status, l.completed_at,
                       b.status AS was,
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

-- step
ALTER TABLE tally.payment_receipt VALIDATE CONSTRAINT refunds_within_payment;
ALTER TABLE tally.payment_idempotency_log VALIDATE CONSTRAINT part_is_a_digest;

-- step: concurrently
-- One live refund of a payment, and one of each generation, is the saga's rule: parts have theirs in the key, and in the sum.
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS one_live_whole_refund ON tally.payment_idempotency_log
    (payment_intent_id, provider, tenant_id) WHERE operation_type = 'REFUND' AND status <> 'FAILED' AND part IS NULL;
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS whole_refund_generation ON tally.payment_idempotency_log
    (payment_intent_id, provider, tenant_id, attempt) WHERE operation_type = 'REFUND' AND part IS NULL;
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS one_live_part ON tally.payment_idempotency_log (order_id, tenant_id, part)
    WHERE operation_type = 'REFUND' AND status <> 'FAILED' AND part IS NOT NULL;

-- step
DROP INDEX tally.one_live_refund;
ALTER INDEX tally.one_live_whole_refund RENAME TO one_live_refund;
DROP INDEX tally.refund_generation;
ALTER INDEX tally.whole_refund_generation RENAME TO refund_generation;
