-- What a lost life gave back of a payment that is recorded here is told to a person as soon as the provider's books are read.
--
-- An order was paid, and the money went back; a backup that knows of neither came to life, and the buyer's retry made the order
-- again: it is PAID by the charge that the provider answers from memory, and nothing said that the money had gone back before
-- some webhook was told again. The refund's movement is an orphan by then: `word` is what the provider calls its state, so that
-- a webhook that tells of it later is the same break.
--
-- Rows of before have none. The release before this one runs beside it, and writes none.
ALTER TABLE tally.orphan ADD COLUMN word text;
CREATE INDEX orphan_parent ON tally.orphan (provider, parent) WHERE parent IS NOT NULL;

-- Refunds of this payment that a lost life made, under whichever key: nothing that was sent or waits here explains them.
CREATE FUNCTION tally.given_back_elsewhere(of_provider text, of_payment text) RETURNS SETOF tally.orphan
LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT o.*
      FROM tally.orphan o
     WHERE o.provider = of_provider AND o.parent = of_payment AND o.purpose = 'refund' AND o.state <> 'failed'
       AND NOT EXISTS (SELECT FROM tally.payment_idempotency_log l
                        WHERE l.idempotency_key BETWEEN o.key_from AND o.key_to AND l.provider = o.provider
                          AND l.status <> 'FAILED')
       -- Somebody asked for it anew, under another key, and a person has confirmed that this is it.
       AND NOT EXISTS (SELECT FROM tally.payment_idempotency_log l
                        WHERE l.refund_id = o.provider_id AND l.provider = o.provider AND l.status = 'COMPLETED')
$$;
