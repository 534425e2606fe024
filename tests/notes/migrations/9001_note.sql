-- A note of a tenant, counted by a worker.
CREATE TABLE tally.note (
    tenant_id integer NOT NULL REFERENCES tally.tenant,
    number    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    text      text NOT NULL CHECK (text <> ''),
    counted   boolean NOT NULL DEFAULT false
);
