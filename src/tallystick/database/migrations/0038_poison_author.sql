-- Who resolved a record that was set aside: to dismiss one is to leave a webhook unheard, and somebody's decision.
--
-- Rows of before, and those that the release before this one resolves beside it, have nobody.
ALTER TABLE tally.webhook_poison ADD COLUMN resolved_by text;
DROP TRIGGER identity ON tally.webhook_poison;
CREATE TRIGGER identity BEFORE UPDATE ON tally.webhook_poison FOR EACH ROW
    WHEN (old.resolved_at IS NOT NULL
          OR (to_jsonb(old) - 'resolved_at' - 'resolution' - 'resolved_by')
             IS DISTINCT FROM (to_jsonb(new) - 'resolved_at' - 'resolution' - 'resolved_by'))
    EXECUTE FUNCTION tally.refuse_change('a record that was set aside is resolved once, and never changed');
