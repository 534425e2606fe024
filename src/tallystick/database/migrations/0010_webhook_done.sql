-- Webhooks that tell of no movement of money and name none: nobody does anything about them, and most of what a provider
-- tells is such. They are done when they are stored, and no worker claims and finishes what concerns nobody.
--
-- Everything else begins unprocessed, as before.

ALTER TABLE tally.webhook_events
    DROP CONSTRAINT claimed,
    ADD CONSTRAINT claimed CHECK (status = 'UNPROCESSED' OR claim_number > 0
                                  OR (status = 'PROCESSED_OK' AND purpose IS NULL AND object_purpose IS NULL));

DROP TRIGGER begins ON tally.webhook_events;
CREATE TRIGGER begins BEFORE INSERT ON tally.webhook_events FOR EACH ROW
    WHEN (new.claim_number <> 0 OR new.tries <> 0
          OR NOT (new.status = 'UNPROCESSED'
                  OR (new.status = 'PROCESSED_OK' AND new.purpose IS NULL AND new.object_purpose IS NULL)))
    EXECUTE FUNCTION tally.refuse_change('an event begins unprocessed, unless it concerns nobody');
