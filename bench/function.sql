-- A ledger as one function: what a team writes that keeps it all in PostgreSQL. Made to be quick: no foreign keys
-- (the function has just made or locked what it refers to), and room in every page for the next balance.
CREATE SCHEMA peer;

CREATE TABLE peer.account (
    id             text COLLATE "C" PRIMARY KEY,
    floor_micros   bigint,
    balance_micros bigint NOT NULL DEFAULT 0,
    CHECK (floor_micros IS NULL OR balance_micros >= floor_micros)
) WITH (fillfactor = 50);

CREATE TABLE peer.operation (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key           text COLLATE "C" NOT NULL UNIQUE,
    debit         text NOT NULL,
    credit        text NOT NULL,
    amount_micros bigint NOT NULL CHECK (amount_micros > 0),
    at            timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE peer.entry (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation_id   bigint NOT NULL,
    account        text COLLATE "C" NOT NULL,
    amount_micros  bigint NOT NULL CHECK (amount_micros <> 0),
    balance_micros bigint NOT NULL
);

CREATE TABLE peer.outbox (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation_id bigint NOT NULL
);

-- The answer is the operation's row, so a replay gives what the first call gave.
CREATE FUNCTION peer.transfer(
    p_key text, p_debit text, p_credit text, p_amount_micros bigint, OUT body text, OUT is_replay boolean
) LANGUAGE plpgsql AS $$
DECLARE
    found_operation peer.operation;
    moved_accounts  bigint;
BEGIN
    -- A twin waits here until the first has committed or is gone.
    INSERT INTO peer.operation (key, debit, credit, amount_micros)
    VALUES (p_key, p_debit, p_credit, p_amount_micros)
    ON CONFLICT (key) DO NOTHING
    RETURNING * INTO found_operation;
    is_replay := NOT FOUND;
    IF is_replay THEN
        SELECT * INTO STRICT found_operation FROM peer.operation WHERE key = p_key;
        IF (found_operation.debit, found_operation.credit, found_operation.amount_micros)
           IS DISTINCT FROM (p_debit, p_credit, p_amount_micros) THEN
            RAISE EXCEPTION 'key % was used for another transfer', p_key;
        END IF;
    ELSE
        -- Both accounts in one order for everybody: no deadlock.
        PERFORM FROM peer.account WHERE id IN (p_debit, p_credit) ORDER BY id FOR NO KEY UPDATE;
        WITH moved AS (
            UPDATE peer.account a SET balance_micros = a.balance_micros + leg.amount_micros
              FROM (VALUES (p_debit, -p_amount_micros), (p_credit, p_amount_micros)) AS leg (id, amount_micros)
             WHERE a.id = leg.id
            RETURNING a.id, leg.amount_micros, a.balance_micros
        )
        INSERT INTO peer.entry (operation_id, account, amount_micros, balance_micros)
        SELECT found_operation.id, id, amount_micros, balance_micros FROM moved;
        GET DIAGNOSTICS moved_accounts = ROW_COUNT;
        IF moved_accounts <> 2 THEN
            RAISE EXCEPTION 'no account % or %', p_debit, p_credit;
        END IF;
        INSERT INTO peer.outbox (operation_id) VALUES (found_operation.id);
    END IF;
    body := format('{"id":%s,"key":"%s","at":"%s"}', found_operation.id, found_operation.key, found_operation.at);
END $$;
