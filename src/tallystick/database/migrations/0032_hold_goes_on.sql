-- What an order was swept without knowing is found out afterwards.
--
-- An order whose provider did not answer for an hour was swept, and nobody asked again: the payment stayed open there, to be
-- paid at any time, and whether its money came back rested on a webhook. The same for one that the provider's books did not
-- show, and that turned up later. Such a row stays due now after its verdict, until what stands at the provider is ended, told
-- to the saga, or nobody has answered for a month. The verdict stays what it was: it is why the order was swept.
ALTER TABLE tally.order_hold ADD COLUMN closed_as text COLLATE "C";
ALTER TABLE tally.order_hold ADD CONSTRAINT order_hold_closed_as
    CHECK (closed_as IS NULL OR (closed_as IN ('cancelled', 'told', 'ended', 'unanswered')
                                 AND verdict IS NOT NULL AND verdict IN ('given_up', 'absent'))) NOT VALID;

-- Decided once, and closed once. held_since may go back and never ahead: a clock that was ahead has dated it, and the order
-- would be held until that time has come.
DROP TRIGGER decided_once ON tally.order_hold;
CREATE TRIGGER decided_once BEFORE UPDATE ON tally.order_hold FOR EACH ROW
    WHEN ((old.verdict IS NOT NULL AND (new.verdict IS DISTINCT FROM old.verdict OR old.verdict IN ('cancelled', 'ended')))
          OR old.closed_as IS NOT NULL OR old.held_since < new.held_since OR old.order_id <> new.order_id
          OR old.tenant_id <> new.tenant_id OR new.claim_number < old.claim_number)
    EXECUTE FUNCTION tally.refuse_change('what became of a held order is decided once');

-- step
ALTER TABLE tally.order_hold VALIDATE CONSTRAINT order_hold_closed_as;

-- step: concurrently
CREATE INDEX CONCURRENTLY IF NOT EXISTS order_hold_open ON tally.order_hold (due_at)
 WHERE verdict IN ('given_up', 'absent') AND closed_as IS NULL;
