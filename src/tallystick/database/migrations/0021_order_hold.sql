-- What stands at a provider is ended before an order is swept.
--
-- An order whose payment is still open at the provider could be paid a moment after its stock was given to somebody else. So
-- the sweeper first has the payment cancelled there, and an order waits here meanwhile: since when, and what was answered.
-- The row is committed before anybody is called; who asks has its claim. One row for each order that was charged, not paid,
-- and is overdue: most orders never get one.

CREATE TABLE tally.order_hold (
    tenant_id    integer NOT NULL,
    order_id     uuid NOT NULL,
    -- From here on a provider that is out of reach is waited for, by the database's clock.
    held_since   timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- In every later UPDATE: who lost its claim can no longer write.
    claim_number integer NOT NULL DEFAULT 0 CHECK (claim_number >= 0),
    tries        integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    -- NULL: nobody knows yet. The others but `ended` let the sweeper have the order.
    verdict      text COLLATE "C" CHECK (verdict IN ('cancelled', 'absent', 'given_up', 'ended')),
    reason       text,
    evidence     bytea,
    PRIMARY KEY (order_id, tenant_id),
    FOREIGN KEY (tenant_id, order_id) REFERENCES tally.orders
);
CREATE INDEX order_hold_due ON tally.order_hold (due_at) WHERE verdict IS NULL;

CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.order_hold
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('it is why an order was swept');
CREATE TRIGGER decided_once BEFORE UPDATE ON tally.order_hold FOR EACH ROW
    WHEN (old.verdict IS NOT NULL OR old.held_since <> new.held_since OR old.order_id <> new.order_id
          OR old.tenant_id <> new.tenant_id OR new.claim_number < old.claim_number)
    EXECUTE FUNCTION tally.refuse_change('what became of a held order is decided once');

GRANT SELECT ON tally.order_hold TO tallystick_reader;
ALTER TABLE tally.order_hold ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON tally.order_hold FOR SELECT TO tallystick_reader
    USING (tenant_id = (SELECT tally.current_tenant()));
