-- When complete books of the provider first did not show a charge, and nothing of it could come any more.
--
-- A charge whose request was lost stays PENDING: nobody can say that it did not happen. Its order is over, the provider has
-- forgotten its key, and no attempt of it ended in a server's error: if the books do not show it an hour after they did not
-- show it first, it was never there, and is FAILED as `never_seen`. A column alone: nothing is rewritten, and the release
-- before this one does not look at it.

ALTER TABLE tally.payment_idempotency_log ADD COLUMN absent_at timestamptz;
