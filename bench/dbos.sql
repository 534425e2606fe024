-- The tables of an application on DBOS. The key and the answer are in DBOS's own tables: no operation, no outbox.
CREATE SCHEMA peer;

CREATE TABLE peer.account (
    id             text COLLATE "C" PRIMARY KEY,
    floor_micros   bigint,
    balance_micros bigint NOT NULL DEFAULT 0,
    CHECK (floor_micros IS NULL OR balance_micros >= floor_micros)
) WITH (fillfactor = 50);

CREATE TABLE peer.entry (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation_key  text COLLATE "C" NOT NULL,
    account        text COLLATE "C" NOT NULL,
    amount_micros  bigint NOT NULL CHECK (amount_micros <> 0),
    balance_micros bigint NOT NULL
);
