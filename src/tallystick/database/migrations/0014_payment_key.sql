-- The keys of /pay: what a caller's Idempotency-Key was first used for, and what the provider's final answer was.
--
-- A repeated key began attempt after attempt while the card was declined, and was taken with any other body. It is bound now,
-- in the commit of the intent, to its order, its body and the attempt it began or joined: what that attempt came to is the
-- answer to every repeat. What is pending is not recorded, so it is asked about again.
--
-- Rows are only added, also by the release before this one, which knows nothing of keys: its charges have none. Columns that
-- are new in the log may be absent or have defaults, and nothing that the release before writes is refused.

CREATE TABLE tally.payment_key (
    tenant_id      integer NOT NULL,
    -- As the caller wrote it. The route is part of it: the same key elsewhere in the API is another one.
    key            text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
    order_id       uuid NOT NULL,
    -- Of the charge whose answer is this key's.
    attempt        integer NOT NULL CHECK (attempt >= 1),
    -- SHA-256 of the payment method that came with it: it may be the encrypted data of a card. The reservation token needs
    -- no column: it was the order's own, or nothing would be here.
    payment_method bytea CHECK (octet_length(payment_method) = 32),
    -- What a key that came after the charge's answer was told of it; else the charge itself says it.
    told           text CHECK (told IN ('AWAITING_CUSTOMER', 'COMPLETED')),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, key)
);
-- How the keys of an order are found (explain). They come in the order of time, so it stays small in memory.
CREATE INDEX payment_keys_of_order ON tally.payment_key (order_id, tenant_id);

ALTER TABLE tally.payment_idempotency_log
    -- When it was answered, the payment waited for its customer: his card, his bank's question.
    ADD COLUMN awaits_customer boolean NOT NULL DEFAULT false,
    -- What was told of a refusal, to the byte: code, detail and remedy.
    ADD COLUMN refusal bytea;

-- Set-based instead of a foreign key (decision 0003): a charge cannot go away.
CREATE FUNCTION tally.payment_keys_bound() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    nowhere bigint;
BEGIN
    SELECT count(*) INTO nowhere
      FROM fresh f
      LEFT JOIN LATERAL (SELECT true AS is_there FROM tally.payment_idempotency_log l
                          WHERE l.operation_type = 'CHARGE' AND l.order_id = f.order_id AND l.tenant_id = f.tenant_id
                            AND l.attempt = f.attempt OFFSET 0) AS l ON true
     WHERE l.is_there IS NULL;
    IF nowhere <> 0 THEN
        RAISE EXCEPTION 'tally: % key(s) of charges that their tenant does not have', nowhere USING ERRCODE = 'TS003';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER payment_keys_bound AFTER INSERT ON tally.payment_key
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.payment_keys_bound();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.payment_key
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a key that is forgotten could be charged again');
CREATE TRIGGER outcome BEFORE UPDATE ON tally.payment_idempotency_log FOR EACH ROW
    WHEN (old.status <> 'PENDING'
          AND (old.awaits_customer <> new.awaits_customer OR old.refusal IS DISTINCT FROM new.refusal))
    EXECUTE FUNCTION tally.refuse_change('what was answered under a key never changes');

GRANT SELECT ON tally.payment_key TO tallystick_reader;
ALTER TABLE tally.payment_key ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON tally.payment_key FOR SELECT TO tallystick_reader
    USING (tenant_id = (SELECT tally.current_tenant()));
