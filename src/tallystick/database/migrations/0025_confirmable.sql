-- A refused charge may leave a payment at the provider that the customer could still finish, by another card.
--
-- Stripe keeps the PaymentIntent of a declined card for the next one. When the buyer's next attempt began beside it, both could
-- be paid: one order, two charges, and a refund. The log knows what was left (its id is the charge's payment_intent_id), and it
-- is cancelled at the provider before the next attempt. Rows of before, and of the release before, say that nothing was left.
ALTER TABLE tally.payment_idempotency_log ADD COLUMN is_confirmable boolean NOT NULL DEFAULT false;
