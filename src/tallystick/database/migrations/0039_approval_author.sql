-- Who asks for a second person, and who answers, is the author of that step of the journal.
--
-- A payout above its tenant's threshold is held in the commit that promises it, and that commit is of many callers' payouts: it
-- has no author, and the step was nobody's. The row knows who asked.
CREATE OR REPLACE FUNCTION tally.approval_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM tally.journal_step(f.tenant_id, 'approval.' || coalesce(f.decision, 'asked'),
                               convert_to(to_jsonb(f)::text, 'UTF8'), coalesce(f.decided_by, f.asked_by)) FROM fresh f;
    RETURN NULL;
END $$;
