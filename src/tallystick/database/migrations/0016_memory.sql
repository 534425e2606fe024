-- A provider's memory of a key is counted from the creation of what the key pays for, and no longer from the first send
-- that is stored: a database that was restored plainly does not know of the sends that it lost.
--
-- since is that creation, as the first who asked for the intent knew it. Intents of before have none: theirs counts from
-- first_sent_at, as it did. An intent may now be there before anything was sent (attempts = 0), while the provider's books
-- are asked about it; first_sent_at is then when it was made, never later than the first send.
ALTER TABLE tally.intent ADD COLUMN since timestamptz;

DROP TRIGGER identity ON tally.intent;
CREATE TRIGGER identity BEFORE UPDATE ON tally.intent FOR EACH ROW
    WHEN (old.tenant_id <> new.tenant_id OR old.provider <> new.provider OR old.key <> new.key
          OR old.purpose <> new.purpose OR old.instruction <> new.instruction OR old.account <> new.account
          OR old.first_sent_at <> new.first_sent_at OR new.attempts < old.attempts
          OR old.subject IS DISTINCT FROM new.subject OR (old.ended AND NOT new.ended)
          OR old.since IS DISTINCT FROM new.since)
    EXECUTE FUNCTION tally.refuse_change('what was asked, and when first, never changes');
