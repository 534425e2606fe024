-- Whose money a payout is.
--
-- A settlement paid from the tenant's clearing account, while the seller's balance stood as it was: "pay this seller out" was
-- two calls that could part. It may name its source now, which its own commit debits; NULL is clearing, as before. The ledger's
-- operation has the debit; this is for whoever reads the row. A column without a default: nothing is rewritten.
ALTER TABLE tally.settlement ADD COLUMN source text COLLATE "C";
ALTER TABLE tally.settlement ADD CONSTRAINT source_is_an_account CHECK (octet_length(source) BETWEEN 1 AND 200) NOT VALID;
CREATE TRIGGER source_identity BEFORE UPDATE ON tally.settlement FOR EACH ROW
    WHEN (old.source IS DISTINCT FROM new.source)
    EXECUTE FUNCTION tally.refuse_change('what a settlement is never changes');

-- step
ALTER TABLE tally.settlement VALIDATE CONSTRAINT source_is_an_account;
