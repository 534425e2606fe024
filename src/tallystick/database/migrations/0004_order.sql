-- Orders: stock that is reserved, sold, or given back.
--
-- The order is the reservation: there is no second row that could disagree with it. What a SKU's counters say follows
-- from its orders, because the triggers below are all that moves them: reserved is the PENDING, sold is the PAID.
-- One SKU is one row, however many want it; whoever reserves for many takes its lock once for all of them.

CREATE TABLE tally.sku (
    tenant_id  integer NOT NULL REFERENCES tally.tenant,
    sku        text COLLATE "C" NOT NULL CHECK (sku ~ '^[A-Za-z0-9][A-Za-z0-9:_.@+=-]{0,119}$'),
    -- All that was ever put up for sale.
    stock      bigint NOT NULL CHECK (stock BETWEEN 0 AND 1000000000),
    reserved   bigint NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    sold       bigint NOT NULL DEFAULT 0 CHECK (sold >= 0),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, sku),
    CONSTRAINT never_oversold CHECK (reserved + sold <= stock)
) WITH (fillfactor = 50);

-- id is that of the operation under whose key it was reserved: one key, one order.
CREATE TABLE tally.orders (
    tenant_id         integer NOT NULL,
    id                uuid NOT NULL,
    sku               text COLLATE "C" NOT NULL,
    quantity          integer NOT NULL CHECK (quantity BETWEEN 1 AND 1000000),
    amount_micros     bigint NOT NULL CHECK (amount_micros BETWEEN 1 AND 1000000000000000),
    currency          text COLLATE "C" NOT NULL CHECK (octet_length(currency) = 3),
    status            text NOT NULL DEFAULT 'PENDING'
                      CHECK (status IN ('PENDING', 'PAID', 'CANCELLED', 'CANCELLED_BY_SWEEPER')),
    reservation_token uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at        timestamptz NOT NULL,
    expires_at        timestamptz NOT NULL CHECK (expires_at > created_at),
    changed_at        timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id)
) WITH (fillfactor = 70);

-- All that the sweeper looks at, so its work does not grow with the orders that are done.
CREATE INDEX orders_pending ON tally.orders (expires_at) WHERE status = 'PENDING';

-- Counts since the first day, in a few rows so that those who write beside each other do not meet.
CREATE TABLE tally.order_count (
    slot  integer NOT NULL,
    name  text NOT NULL,
    value bigint NOT NULL,
    PRIMARY KEY (slot, name)
) WITH (fillfactor = 50);

-- The canonical request of core/order.py: an order is what its key was bound to, or it is none.
CREATE FUNCTION tally.order_request(sku text, quantity integer, amount_micros bigint, currency text) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN convert_to('{"kind":"order.reserved","sku":"' || sku || '","quantity":' || quantity || ',"amount_micros":'
                  || amount_micros || ',"currency":"' || currency || '"}', 'UTF8');

-- New orders: each under its own key, its quantity into reserved. The CHECK of tally.sku refuses what is too much.
-- The SKUs are locked in one order, whoever writes, so that two of them can wait in one direction only.
CREATE FUNCTION tally.orders_reserved() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    fault record;
BEGIN
    PERFORM 1 FROM (SELECT DISTINCT tenant_id, sku FROM fresh ORDER BY tenant_id, sku) AS f
      CROSS JOIN LATERAL (SELECT 1 FROM tally.sku s WHERE s.tenant_id = f.tenant_id AND s.sku = f.sku
                             FOR NO KEY UPDATE) AS locked;
    WITH change AS (
        SELECT tenant_id, sku, sum(quantity) AS quantity FROM fresh GROUP BY tenant_id, sku
    ), moved AS (
        UPDATE tally.sku s SET reserved = s.reserved + c.quantity
          FROM change c WHERE s.tenant_id = c.tenant_id AND s.sku = c.sku
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM change) - (SELECT count(*) FROM moved) AS nowhere,
           (SELECT count(*) FROM fresh f
             WHERE (SELECT o.request FROM tally.operation o WHERE o.tenant_id = f.tenant_id AND o.id = f.id)
                   IS DISTINCT FROM tally.order_request(f.sku, f.quantity, f.amount_micros, f.currency)) AS unkeyed,
           (SELECT count(*) FROM fresh) AS made
      INTO fault;
    IF fault.nowhere <> 0 THEN
        RAISE EXCEPTION 'tally: orders of % SKU(s) that their tenant does not have', fault.nowhere
              USING ERRCODE = 'TS003';
    END IF;
    IF fault.unkeyed <> 0 THEN
        RAISE EXCEPTION 'tally: % order(s) are not what was asked under their key', fault.unkeyed
              USING ERRCODE = 'TS005';
    END IF;
    PERFORM tally.order_counted('reserved', fault.made);
    RETURN NULL;
END $$;

CREATE FUNCTION tally.order_counted(counted text, more bigint) RETURNS void
LANGUAGE sql SET search_path = pg_catalog AS $$
    INSERT INTO tally.order_count AS c (slot, name, value) SELECT pg_backend_pid() % 64, counted, more WHERE more > 0
        ON CONFLICT (slot, name) DO UPDATE SET value = c.value + excluded.value
$$;

-- A step of an order moves its quantity by what the row said before and says now: released twice is impossible, because
-- the second release finds that nothing changed. Every step enters journal and outbox because it happened.
CREATE FUNCTION tally.orders_changed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    counted record;
BEGIN
    PERFORM 1 FROM (SELECT DISTINCT tenant_id, sku FROM fresh ORDER BY tenant_id, sku) AS f
      CROSS JOIN LATERAL (SELECT 1 FROM tally.sku s WHERE s.tenant_id = f.tenant_id AND s.sku = f.sku
                             FOR NO KEY UPDATE) AS locked;
    UPDATE tally.sku s SET reserved = s.reserved + c.reserved, sold = s.sold + c.sold
      FROM (SELECT tenant_id, sku, sum(reserved) AS reserved, sum(sold) AS sold
              FROM (SELECT tenant_id, sku, CASE status WHEN 'PENDING' THEN quantity ELSE 0 END AS reserved,
                           CASE status WHEN 'PAID' THEN quantity ELSE 0 END AS sold
                      FROM fresh
                     UNION ALL
                    SELECT tenant_id, sku, CASE status WHEN 'PENDING' THEN -quantity ELSE 0 END,
                           CASE status WHEN 'PAID' THEN -quantity ELSE 0 END
                      FROM before) AS held
             GROUP BY tenant_id, sku) AS c
     WHERE s.tenant_id = c.tenant_id AND s.sku = c.sku AND (c.reserved <> 0 OR c.sold <> 0);
    WITH step AS MATERIALIZED (
        SELECT f.tenant_id, t.name AS tenant, 'order.' || lower(f.status) AS subject,
               convert_to(jsonb_build_object('order', f.id, 'sku', f.sku, 'quantity', f.quantity,
                                             'amount_micros', f.amount_micros, 'currency', f.currency,
                                             'status', f.status, 'was', b.status, 'at', f.changed_at)::text, 'UTF8') AS body
          FROM fresh f
          JOIN before b ON b.tenant_id = f.tenant_id AND b.id = f.id AND b.status <> f.status
          JOIN tally.tenant t ON t.tenant_id = f.tenant_id
    ), journaled AS (
        INSERT INTO tally.journal (tenant_id, subject, body, digest)
        SELECT tenant_id, subject, body,
               sha256('tallystick/journal/1'::bytea
                   || int4send(octet_length(tenant)) || convert_to(tenant, 'UTF8')
                   || int4send(octet_length(subject)) || convert_to(subject, 'UTF8')
                   || int4send(octet_length(body)) || body)
          FROM step
    )
    INSERT INTO tally.outbox (tenant_id, topic, body) SELECT tenant_id, subject, body FROM step;
    FOR counted IN SELECT lower(f.status) AS name, count(*) AS steps FROM fresh f
                     JOIN before b ON b.tenant_id = f.tenant_id AND b.id = f.id AND b.status <> f.status
                    GROUP BY f.status ORDER BY f.status LOOP
        PERFORM tally.order_counted(counted.name, counted.steps);
    END LOOP;
    RETURN NULL;
END $$;

CREATE TRIGGER orders_reserved AFTER INSERT ON tally.orders
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.orders_reserved();
CREATE TRIGGER orders_changed AFTER UPDATE ON tally.orders
    REFERENCING OLD TABLE AS before NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.orders_changed();
CREATE TRIGGER born_pending BEFORE INSERT ON tally.orders FOR EACH ROW
    WHEN (new.status <> 'PENDING' OR new.changed_at <> new.created_at)
    EXECUTE FUNCTION tally.refuse_change('an order begins as a reservation');
CREATE TRIGGER identity BEFORE UPDATE ON tally.orders FOR EACH ROW
    WHEN (old.tenant_id <> new.tenant_id OR old.id <> new.id OR old.sku <> new.sku OR old.quantity <> new.quantity
          OR old.amount_micros <> new.amount_micros OR old.currency <> new.currency
          OR old.reservation_token <> new.reservation_token OR old.created_at <> new.created_at
          OR old.expires_at <> new.expires_at)
    EXECUTE FUNCTION tally.refuse_change('what an order is never changes');
CREATE TRIGGER transition BEFORE UPDATE ON tally.orders FOR EACH ROW
    WHEN (old.status <> new.status AND old.status <> 'PENDING')
    EXECUTE FUNCTION tally.refuse_change('that is no step of an order');
-- How long the grace is, is a setting; that nobody is swept before his time is not.
CREATE TRIGGER patience BEFORE UPDATE ON tally.orders FOR EACH ROW
    WHEN (old.status <> new.status AND new.status = 'CANCELLED_BY_SWEEPER' AND old.expires_at > clock_timestamp())
    EXECUTE FUNCTION tally.refuse_change('it has not expired');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.orders
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('an order that is forgotten could be paid for nothing');

CREATE TRIGGER identity BEFORE UPDATE ON tally.sku FOR EACH ROW
    WHEN (old.tenant_id <> new.tenant_id OR old.sku <> new.sku OR old.created_at <> new.created_at)
    EXECUTE FUNCTION tally.refuse_change('what a SKU is never changes');
CREATE TRIGGER counters BEFORE UPDATE ON tally.sku FOR EACH ROW
    WHEN (pg_trigger_depth() = 0 AND (old.reserved <> new.reserved OR old.sold <> new.sold))
    EXECUTE FUNCTION tally.refuse_change('its counters are moved by orders alone');
CREATE TRIGGER counters_at_birth BEFORE INSERT ON tally.sku FOR EACH ROW
    WHEN (new.reserved <> 0 OR new.sold <> 0)
    EXECUTE FUNCTION tally.refuse_change('a SKU begins with nothing promised');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.sku
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('SKUs are kept for their orders');

-- A change of the stock, by whoever makes it. What orders move is journaled with them.
CREATE FUNCTION tally.stock_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM tally.journal_step(f.tenant_id, 'sku.stock', convert_to(jsonb_build_object(
                'sku', f.sku, 'stock', f.stock, 'reserved', f.reserved, 'sold', f.sold)::text, 'UTF8')) FROM fresh f;
    RETURN NULL;
END $$;
CREATE TRIGGER made_journaled AFTER INSERT ON tally.sku
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.stock_journaled();
CREATE TRIGGER changed_journaled AFTER UPDATE ON tally.sku
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
    EXECUTE FUNCTION tally.stock_journaled();

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['sku', 'orders'] LOOP
        EXECUTE format('GRANT SELECT ON tally.%I TO tallystick_reader', name);
        EXECUTE format('ALTER TABLE tally.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY own_tenant ON tally.%I FOR SELECT TO tallystick_reader '
                       'USING (tenant_id = (SELECT tally.current_tenant()))', name);
    END LOOP;
END $$;
