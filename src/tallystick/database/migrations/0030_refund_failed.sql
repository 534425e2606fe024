-- Two persons may find that a refund did not happen.
--
-- A refund whose outcome nobody can tell waited for a person, who could only confirm it. Now two persons may also call it
-- failed: a part is then its tenant's again, the saga's is made anew under another key.
--
-- The release before this one runs beside it, and takes every approval of a refund but `keep` for a confirmation: it would
-- complete such a refund without an id. No refund that the provider has is without one.

ALTER TABLE tally.approval DROP CONSTRAINT approval_action_check;
ALTER TABLE tally.approval ADD CONSTRAINT approval_action_check
    CHECK (action IN ('new_generation', 'payout', 'refund_confirm', 'refund_failed', 'refund_keep')) NOT VALID;
ALTER TABLE tally.payment_idempotency_log ADD CONSTRAINT refund_has_a_name
    CHECK (status <> 'COMPLETED' OR operation_type <> 'REFUND' OR refund_id <> '') NOT VALID;

-- step
ALTER TABLE tally.approval VALIDATE CONSTRAINT approval_action_check;
ALTER TABLE tally.payment_idempotency_log VALIDATE CONSTRAINT refund_has_a_name;
