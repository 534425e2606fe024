-- Webhooks that only name what changed: Wise's say which transfer, and neither its amount nor our reference.
--
-- Such an event keeps what it names, and what that is; the worker asks the provider for it before anybody decides. An
-- event that tells of a movement itself has all of that in its own columns, and keeps nothing here.

ALTER TABLE tally.webhook_events
    ADD COLUMN object_id text COLLATE "C" CHECK (octet_length(object_id) BETWEEN 1 AND 500),
    -- What to fetch it as. NULL where nobody needs to.
    ADD COLUMN object_purpose text COLLATE "C" CHECK (object_purpose IN ('charge', 'refund', 'transfer', 'payout')),
    ADD CONSTRAINT told_or_named CHECK (purpose IS NULL OR object_id IS NULL),
    ADD CONSTRAINT fetched_by_its_id CHECK (object_purpose IS NULL OR object_id IS NOT NULL);

CREATE TRIGGER identity_of_object BEFORE UPDATE ON tally.webhook_events FOR EACH ROW
    WHEN (old.object_id IS DISTINCT FROM new.object_id OR old.object_purpose IS DISTINCT FROM new.object_purpose)
    EXECUTE FUNCTION tally.refuse_change('what a provider told never changes');
