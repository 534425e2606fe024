-- A payout that needs a second person is not sent by way of a dispute.
--
-- Rejected, it had failed; disputed by one person and tried again by the same, it went from disputed to processing and was
-- paid. Only held to pending asked for the approval. Now the step back to processing asks as well. The release before this
-- one makes nothing that needs an approval, so that nothing of its own is refused.
CREATE FUNCTION tally.payout_tried_again() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tally.settlement s
                WHERE s.tenant_id = new.tenant_id AND s.number = new.number AND s.needs_approval
                  AND NOT EXISTS (SELECT 1 FROM tally.approval p
                                   WHERE p.tenant_id = s.tenant_id AND p.subject = s.id AND p.decision = 'approved'
                                     AND p.action IN ('payout', 'new_generation')))
    THEN
        RAISE EXCEPTION 'tally: a payout that nobody approved is not tried again' USING ERRCODE = 'TS004';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER tried_again BEFORE UPDATE ON tally.settlement_state FOR EACH ROW
    WHEN (old.status = 'disputed' AND new.status = 'processing') EXECUTE FUNCTION tally.payout_tried_again();
