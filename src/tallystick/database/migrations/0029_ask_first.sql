-- After a restore a charge or a refund is asked about before anything more of it is sent, as a payout is.
--
-- What a backup shows as PENDING the lost life may have charged or given back. `tally recover` marks it here; the mark goes
-- when the provider's books have answered: they have it, or they show that it is not there. What nobody can be asked about
-- keeps the mark, and its reason calls a person.
--
-- The release before this one runs beside it: it marks nothing, and goes by the age of the keys, as it did. Rows that are no
-- longer PENDING may keep a mark that it did not know of; it says nothing of them.
ALTER TABLE tally.payment_idempotency_log ADD COLUMN ask_first boolean NOT NULL DEFAULT false;
