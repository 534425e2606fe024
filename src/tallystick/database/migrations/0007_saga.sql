-- The saga: what came of each payment's money, and how what came too late is given back.
--
--   webhook --> receipt PAID ----> order PAID
--           --> receipt REFUND --> refund in tally.payment_idempotency_log --> COMPLETED
--           --> receipt REVIEW --> a person: REFUND, or KEPT
--           --> break              nothing here explains it, or it contradicts what is here
--
-- A receipt is the provider's word that it took money for an order. There is one for each payment, so the same word told
-- twice, under however many events, changes nothing the second time; and one of them, at most, pays an order.

-- What a tenant wants done with money that does not fit. No row: both are given back.
CREATE TABLE tally.checkout_policy (
    tenant_id    integer PRIMARY KEY REFERENCES tally.tenant,
    -- Paid after the sweeper had cancelled: given back, or delivered later.
    late         text NOT NULL CHECK (late IN ('refund', 'backorder')),
    -- Another amount or currency than the order's: given back, or left to a person.
    other_amount text NOT NULL CHECK (other_amount IN ('refund', 'review')),
    changed_by   text NOT NULL,
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE FUNCTION tally.checkout_policy_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM tally.journal_step(f.tenant_id, 'checkout.policy', convert_to(to_jsonb(f)::text, 'UTF8')) FROM fresh f;
    RETURN NULL;
END $$;
CREATE TRIGGER made_journaled AFTER INSERT ON tally.checkout_policy
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.checkout_policy_journaled();
CREATE TRIGGER changed_journaled AFTER UPDATE ON tally.checkout_policy
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.checkout_policy_journaled();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.checkout_policy
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a policy is changed in the open');

CREATE TABLE tally.payment_receipt (
    tenant_id         integer NOT NULL,
    order_id          uuid NOT NULL,
    provider          text COLLATE "C" NOT NULL,
    payment_intent_id text COLLATE "C" NOT NULL,
    -- Of the charge in the log that this payment is the outcome of: what makes it ours.
    charge_key        bytea NOT NULL,
    -- What the provider says it took. Of a PAID one it is the order's.
    amount_micros     bigint NOT NULL CHECK (amount_micros > 0),
    currency          text COLLATE "C" NOT NULL CHECK (octet_length(currency) = 3),
    fate              text NOT NULL CHECK (fate IN ('PAID', 'REFUND', 'REVIEW', 'KEPT')),
    -- Why it is not simply PAID.
    reason            text,
    -- The event that told of it first. It is finished as PROCESSED_COMPENSATED in the commit that completes the refund.
    event_number      bigint NOT NULL,
    -- When that event arrived: the time to compensate counts from here.
    received_at       timestamptz NOT NULL,
    recorded_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (order_id, tenant_id, payment_intent_id, provider),
    CHECK (fate = 'PAID' OR reason IS NOT NULL)
) WITH (fillfactor = 90);
-- A payment counts once, whoever's it is.
CREATE UNIQUE INDEX one_receipt ON tally.payment_receipt (payment_intent_id, provider);
CREATE UNIQUE INDEX one_payer ON tally.payment_receipt (order_id, tenant_id) WHERE fate = 'PAID';
CREATE INDEX receipt_review ON tally.payment_receipt (received_at) WHERE fate = 'REVIEW';

CREATE FUNCTION tally.receipts_made() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    fault record;
BEGIN
    SELECT count(*) FILTER (WHERE l.idempotency_key IS NULL) AS foreign_,
           count(*) FILTER (WHERE f.fate = 'PAID' AND (o.amount_micros, o.currency)
                                  IS DISTINCT FROM (f.amount_micros, f.currency)) AS other
      INTO fault
      FROM fresh f
      LEFT JOIN LATERAL (SELECT l.idempotency_key FROM tally.payment_idempotency_log l
                          WHERE l.idempotency_key = f.charge_key AND l.tenant_id = f.tenant_id
                            AND l.operation_type = 'CHARGE' AND l.order_id = f.order_id AND l.provider = f.provider
                         OFFSET 0) AS l ON true
      LEFT JOIN LATERAL (SELECT o.amount_micros, o.currency FROM tally.orders o
                          WHERE o.tenant_id = f.tenant_id AND o.id = f.order_id OFFSET 0) AS o ON true;
    IF fault.foreign_ <> 0 OR fault.other <> 0 THEN
        RAISE EXCEPTION 'tally: a receipt needs a charge of its own order (% not), and pays with the order''s amount (% not)',
                        fault.foreign_, fault.other USING ERRCODE = 'TS005';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER receipts_made AFTER INSERT ON tally.payment_receipt
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.receipts_made();
CREATE TRIGGER identity BEFORE UPDATE ON tally.payment_receipt FOR EACH ROW
    WHEN (old.tenant_id <> new.tenant_id OR old.order_id <> new.order_id OR old.provider <> new.provider
          OR old.payment_intent_id <> new.payment_intent_id OR old.charge_key <> new.charge_key
          OR old.amount_micros <> new.amount_micros OR old.currency <> new.currency
          OR old.event_number <> new.event_number OR old.received_at <> new.received_at)
    EXECUTE FUNCTION tally.refuse_change('what a provider took never changes');
CREATE TRIGGER transition BEFORE UPDATE ON tally.payment_receipt FOR EACH ROW
    WHEN (old.fate <> new.fate AND NOT (old.fate = 'REVIEW' AND new.fate IN ('REFUND', 'KEPT')))
    EXECUTE FUNCTION tally.refuse_change('what became of a payment is decided once');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.payment_receipt
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a receipt that is forgotten could be paid or refunded again');

-- What nothing here explains, or contradicts what is here. A person looks; nothing is refunded because of it.
--   missing_here      a payment or refund at the provider that nobody here asked for
--   refunded_outside  a payment of ours was given back, and not by us
--   disputed          the customer's bank took a payment back
--   contradicted      the provider says two things that cannot both be so
--   refund_failed     a refund was refused, or came back: the customer's money is still owed
CREATE TABLE tally.payment_break (
    number            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind              text NOT NULL CHECK (kind IN ('missing_here', 'refunded_outside', 'disputed', 'contradicted',
                                                    'refund_failed')),
    provider          text COLLATE "C" NOT NULL,
    purpose           text NOT NULL,
    -- The provider's id of what it is about, and its own word for how that stands.
    object_id         text COLLATE "C" NOT NULL,
    word              text NOT NULL,
    amount_micros     bigint NOT NULL,
    currency          text NOT NULL,
    tenant_id         integer,
    order_id          uuid,
    event_number      bigint,
    found_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    resolved_at       timestamptz,
    resolution        text,
    resolved_by       text,
    CHECK ((resolved_at IS NULL) = (resolution IS NULL) AND (resolved_at IS NULL) = (resolved_by IS NULL)),
    CHECK ((tenant_id IS NULL) = (order_id IS NULL))
);
CREATE UNIQUE INDEX one_break ON tally.payment_break (provider, object_id, kind, word);
CREATE INDEX open_breaks ON tally.payment_break (found_at) WHERE resolved_at IS NULL;
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.payment_break
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a break is resolved, not removed');
CREATE TRIGGER identity BEFORE UPDATE ON tally.payment_break FOR EACH ROW
    WHEN (old.resolved_at IS NOT NULL OR old.kind <> new.kind OR old.provider <> new.provider
          OR old.object_id <> new.object_id OR old.found_at <> new.found_at)
    EXECUTE FUNCTION tally.refuse_change('a break is resolved once');

-- How long a payment that did not fit was with us: from the webhook's arrival to COMPLETED. In a few rows, like counts.
CREATE TABLE tally.compensation_time (
    slot    integer NOT NULL,
    -- The upper bound in seconds; infinity for the rest.
    le      float8 NOT NULL,
    count   bigint NOT NULL,
    seconds float8 NOT NULL,
    PRIMARY KEY (slot, le)
) WITH (fillfactor = 50);

CREATE INDEX refund_object ON tally.payment_idempotency_log (refund_id) WHERE refund_id IS NOT NULL;
CREATE INDEX refund_completed ON tally.payment_idempotency_log (completed_at)
    WHERE operation_type = 'REFUND' AND status = 'COMPLETED';
CREATE UNIQUE INDEX refund_generation ON tally.payment_idempotency_log (payment_intent_id, provider, tenant_id, attempt)
    WHERE operation_type = 'REFUND';

-- As before, and of refunds: a refund is of a receipt that is to be given back, of all of it, after the generation
-- before it failed for good; and its intent with the exact request is there already.
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
      FROM fresh f
     CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                          WHERE l.idempotency_key = f.idempotency_key AND l.tenant_id = f.tenant_id OFFSET 0) AS l
      LEFT JOIN LATERAL (SELECT * FROM tally.orders o
                          WHERE o.tenant_id = f.tenant_id AND o.id = f.order_id OFFSET 0) AS o ON true
      LEFT JOIN LATERAL (SELECT t.name FROM tally.tenant t WHERE t.tenant_id = f.tenant_id OFFSET 0) AS t ON true
      LEFT JOIN LATERAL (SELECT i.key FROM tally.intent i
                          WHERE i.tenant_id = f.tenant_id AND i.key = f.idempotency_key AND i.provider = f.provider
                         OFFSET 0) AS i ON true
      LEFT JOIN LATERAL (SELECT r.amount_micros, r.currency, r.fate FROM tally.payment_receipt r
                          WHERE f.operation_type = 'REFUND' AND r.order_id = f.order_id AND r.tenant_id = f.tenant_id
                            AND r.payment_intent_id = f.payment_intent_id AND r.provider = f.provider OFFSET 0) AS r ON true
      LEFT JOIN LATERAL (SELECT b.status FROM tally.payment_idempotency_log b
                          WHERE f.operation_type = 'CHARGE' AND f.attempt > 1 AND b.operation_type = 'CHARGE'
                            AND b.order_id = f.order_id AND b.tenant_id = f.tenant_id AND b.attempt = f.attempt - 1
                          UNION ALL
                         SELECT b.status FROM tally.payment_idempotency_log b
                          WHERE f.operation_type = 'REFUND' AND f.attempt > 0 AND b.operation_type = 'REFUND'
                            AND b.payment_intent_id = f.payment_intent_id AND b.provider = f.provider
                            AND b.tenant_id = f.tenant_id AND b.attempt = f.attempt - 1
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
              FROM fresh f
             CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                                  WHERE l.idempotency_key = f.idempotency_key AND l.tenant_id = f.tenant_id
                                 OFFSET 0) AS l
              -- Else the planner writes the expression of body out three times.
            OFFSET 0) AS s
      JOIN tally.tenant t USING (tenant_id);
    RETURN NULL;
END $$;

-- As before, and refunds that are completed are timed. The outbox tells of each step of a refund: whoever follows the
-- orders must hear that money went back.
CREATE OR REPLACE FUNCTION tally.payment_stepped() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    -- A FULL JOIN, and probes: as in orders_changed below.
    WITH change AS MATERIALIZED (
        SELECT f.idempotency_key, f.tenant_id, f.was
          FROM (SELECT f.idempotency_key, f.tenant_id, f.status, b.status AS was
                  FROM fresh f
                  FULL JOIN before b ON b.idempotency_key = f.idempotency_key AND b.tenant_id = f.tenant_id
                OFFSET 0) AS f
         WHERE f.was <> f.status
    ), step AS MATERIALIZED (
        SELECT l.tenant_id, t.name AS tenant, l.operation_type,
               lower(l.operation_type) || '.' || lower(l.status) AS subject,
               tally.payment_step(l, c.was, l.completed_at) AS body,
               CASE WHEN c.was = 'PENDING' AND l.status = 'COMPLETED' AND l.operation_type = 'REFUND'
                    THEN greatest(extract(epoch FROM l.completed_at - r.received_at), 0)::float8 END AS took
          FROM change c
         CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                              WHERE l.idempotency_key = c.idempotency_key AND l.tenant_id = c.tenant_id
                             OFFSET 0) AS l
         CROSS JOIN LATERAL (SELECT t.name FROM tally.tenant t WHERE t.tenant_id = c.tenant_id OFFSET 0) AS t
          LEFT JOIN LATERAL (SELECT r.received_at FROM tally.payment_receipt r
                              WHERE l.operation_type = 'REFUND' AND l.status = 'COMPLETED'
                                AND r.order_id = l.order_id AND r.tenant_id = l.tenant_id
                                AND r.payment_intent_id = l.payment_intent_id AND r.provider = l.provider
                             OFFSET 0) AS r ON true
    ), told AS (
        INSERT INTO tally.outbox (tenant_id, topic, body)
        SELECT tenant_id, subject, body FROM step WHERE operation_type = 'REFUND'
    ), journaled AS (
        INSERT INTO tally.journal (tenant_id, subject, body, digest)
        SELECT tenant_id, subject, body, tally.journal_digest(tenant, subject, body) FROM step
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

-- Backorders: paid, and to be delivered when there is stock again. Not sold yet, so that nothing is ever oversold.
ALTER TABLE tally.orders ADD COLUMN is_backordered boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT backordered_is_paid CHECK (NOT is_backordered OR status = 'PAID');
ALTER TABLE tally.sku ADD COLUMN backordered bigint NOT NULL DEFAULT 0 CHECK (backordered >= 0);
CREATE INDEX orders_backordered ON tally.orders (tenant_id, sku, changed_at) WHERE is_backordered;

-- As before, with backorders; and an order is PAID by a receipt alone, never because somebody says so.
--
-- Plans are kept, and the first batch of a connection is of one row as a rule: joined as a loop within a loop, because one
-- row is expected, a later batch of 500 would be compared 250,000 times. A FULL JOIN is never done so (OFFSET 0, or the
-- planner sees that an inner one is meant); and what is found by its key is probed for, as everywhere.
CREATE OR REPLACE FUNCTION tally.orders_changed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    fault record;
BEGIN
    PERFORM 1 FROM (SELECT DISTINCT tenant_id, sku FROM fresh ORDER BY tenant_id, sku) AS f
      CROSS JOIN LATERAL (SELECT 1 FROM tally.sku s WHERE s.tenant_id = f.tenant_id AND s.sku = f.sku
                             FOR NO KEY UPDATE) AS locked;
    UPDATE tally.sku s SET reserved = s.reserved + c.reserved, sold = s.sold + c.sold,
                           backordered = s.backordered + c.backordered
      FROM (SELECT tenant_id, sku, sum(reserved) AS reserved, sum(sold) AS sold, sum(backordered) AS backordered
              FROM (SELECT tenant_id, sku, CASE status WHEN 'PENDING' THEN quantity ELSE 0 END AS reserved,
                           CASE WHEN status = 'PAID' AND NOT is_backordered THEN quantity ELSE 0 END AS sold,
                           CASE WHEN is_backordered THEN quantity ELSE 0 END AS backordered
                      FROM fresh
                     UNION ALL
                    SELECT tenant_id, sku, CASE status WHEN 'PENDING' THEN -quantity ELSE 0 END,
                           CASE WHEN status = 'PAID' AND NOT is_backordered THEN -quantity ELSE 0 END,
                           CASE WHEN is_backordered THEN -quantity ELSE 0 END
                      FROM before) AS held
             GROUP BY tenant_id, sku) AS c
     WHERE s.tenant_id = c.tenant_id AND s.sku = c.sku AND (c.reserved <> 0 OR c.sold <> 0 OR c.backordered <> 0)
       -- By place, under the locks from above: else every SKU there is would be read.
       AND s.ctid = ANY (ARRAY(SELECT k.ctid FROM (SELECT DISTINCT tenant_id, sku FROM fresh) AS f
                                CROSS JOIN LATERAL (SELECT k.ctid FROM tally.sku k
                                                     WHERE k.tenant_id = f.tenant_id AND k.sku = f.sku OFFSET 0) AS k));
    WITH change AS MATERIALIZED (
        SELECT f.*, t.name AS tenant,
               CASE WHEN f.status = f.was THEN 'filled' WHEN f.is_backordered THEN 'backordered'
                    ELSE lower(f.status) END AS name
          FROM (SELECT f.*, b.status AS was, b.is_backordered AS was_backordered
                  FROM fresh f FULL JOIN before b ON b.tenant_id = f.tenant_id AND b.id = f.id OFFSET 0) AS f
         CROSS JOIN LATERAL (SELECT t.name FROM tally.tenant t WHERE t.tenant_id = f.tenant_id OFFSET 0) AS t
         WHERE f.was <> f.status OR f.was_backordered <> f.is_backordered
    ), step AS MATERIALIZED (
        SELECT tenant_id, tenant, 'order.' || name AS subject,
               convert_to(jsonb_build_object('order', id, 'sku', sku, 'quantity', quantity,
                                             'amount_micros', amount_micros, 'currency', currency,
                                             'status', status, 'was', was, 'backordered', is_backordered,
                                             'at', changed_at)::text, 'UTF8') AS body
          FROM change
    ), journaled AS (
        INSERT INTO tally.journal (tenant_id, subject, body, digest)
        SELECT tenant_id, subject, body, tally.journal_digest(tenant, subject, body) FROM step
    ), told AS (
        INSERT INTO tally.outbox (tenant_id, topic, body) SELECT tenant_id, subject, body FROM step
    )
    SELECT coalesce(sum(unpaid), 0) AS unpaid, coalesce(sum(unasked), 0) AS unasked,
           array_agg(name ORDER BY name) AS names, array_agg(steps ORDER BY name) AS steps
      INTO fault
      FROM (SELECT c.name, count(*) AS steps,
                   count(*) FILTER (WHERE c.status = 'PAID' AND c.was <> 'PAID' AND r.is_there IS NULL) AS unpaid,
                   count(*) FILTER (WHERE c.status = 'PAID' AND c.was NOT IN ('PAID', 'PENDING')
                                      AND p.is_there IS NULL) AS unasked
              FROM change c
              LEFT JOIN LATERAL (SELECT true AS is_there FROM tally.payment_receipt r
                                  WHERE c.status = 'PAID' AND c.was <> 'PAID' AND r.order_id = c.id
                                    AND r.tenant_id = c.tenant_id AND r.fate = 'PAID' OFFSET 0) AS r ON true
              LEFT JOIN LATERAL (SELECT true AS is_there FROM tally.checkout_policy p
                                  WHERE c.status = 'PAID' AND c.was <> 'PENDING' AND p.tenant_id = c.tenant_id
                                    AND p.late = 'backorder' OFFSET 0) AS p ON true
             GROUP BY c.name) AS counted;
    IF fault.unpaid <> 0 OR fault.unasked <> 0 THEN
        RAISE EXCEPTION 'tally: an order is paid by a receipt (% without), and after its cancellation only where the tenant '
                        'takes backorders (% without)', fault.unpaid, fault.unasked USING ERRCODE = 'TS004';
    END IF;
    PERFORM tally.order_counted(c.name, c.steps) FROM unnest(fault.names, fault.steps) AS c (name, steps);
    RETURN NULL;
END $$;
DROP TRIGGER transition ON tally.orders;
-- A backorder is filled once; and what the sweeper cancelled may be paid after all, where the tenant takes backorders.
CREATE TRIGGER transition BEFORE UPDATE ON tally.orders FOR EACH ROW
    WHEN ((old.status <> new.status AND old.status <> 'PENDING'
           AND NOT (old.status = 'CANCELLED_BY_SWEEPER' AND new.status = 'PAID'))
          OR (new.is_backordered AND NOT old.is_backordered AND old.status <> 'CANCELLED_BY_SWEEPER'))
    EXECUTE FUNCTION tally.refuse_change('that is no step of an order');
DROP TRIGGER counters ON tally.sku;
CREATE TRIGGER counters BEFORE UPDATE ON tally.sku FOR EACH ROW
    WHEN (pg_trigger_depth() = 0
          AND (old.reserved <> new.reserved OR old.sold <> new.sold OR old.backordered <> new.backordered))
    EXECUTE FUNCTION tally.refuse_change('its counters are moved by orders alone');
DROP TRIGGER counters_at_birth ON tally.sku;
CREATE TRIGGER counters_at_birth BEFORE INSERT ON tally.sku FOR EACH ROW
    WHEN (new.reserved <> 0 OR new.sold <> 0 OR new.backordered <> 0)
    EXECUTE FUNCTION tally.refuse_change('a SKU begins with nothing promised');

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['checkout_policy', 'payment_receipt', 'payment_break'] LOOP
        EXECUTE format('GRANT SELECT ON tally.%I TO tallystick_reader', name);
        EXECUTE format('ALTER TABLE tally.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY own_tenant ON tally.%I FOR SELECT TO tallystick_reader '
                       'USING (tenant_id = (SELECT tally.current_tenant()))', name);
    END LOOP;
END $$;

-- What is called for each row of a batch must be written out in its statement: called as a function it costs more than all
-- else that is done for the row. The planner does so only with functions that say of themselves what is true, and
-- convert_to is STABLE, because it depends on the database's encoding: so are these.
ALTER FUNCTION tally.key_part STABLE;
ALTER FUNCTION tally.settlement_key STABLE;
ALTER FUNCTION tally.settlement_id STABLE;
ALTER FUNCTION tally.order_request STABLE;
ALTER FUNCTION tally.charge_key STABLE;
ALTER FUNCTION tally.refund_key STABLE;
ALTER FUNCTION tally.journal_digest STABLE;
