-- Intake: webhooks that were appended to a log (Kafka) before the database has them.
--
-- What is read from the log goes into the same three tables by the same guard. Two things are new: how far this database
-- has read, which moves in the commit that stores what was read; and what cannot be stored as a webhook, which is kept
-- aside as it came, so that it neither stops its partition nor disappears.

CREATE TABLE tally.webhook_offset (
    topic       text COLLATE "C" NOT NULL,
    partition   integer NOT NULL CHECK (partition >= 0),
    -- The next one to read. The log's own note of it is of another system: after a restore of this database it would
    -- be ahead of what is here. A lower number only reads again what the guard knows.
    next_offset bigint NOT NULL CHECK (next_offset >= 0),
    read_at     timestamptz NOT NULL,
    PRIMARY KEY (topic, partition)
) WITH (fillfactor = 50);

CREATE TABLE tally.webhook_poison (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic        text COLLATE "C" NOT NULL,
    partition    integer NOT NULL CHECK (partition >= 0),
    first_offset bigint NOT NULL CHECK (first_offset >= 0),
    -- One past the last. More than one record only where the log had deleted them unread: a gap, without a value.
    next_offset  bigint NOT NULL,
    key          bytea,
    value        bytea,
    -- Of the value: a topic that was made anew has other records under the same numbers.
    digest       bytea NOT NULL CHECK (octet_length(digest) = 32),
    reason       text NOT NULL CHECK (length(reason) BETWEEN 1 AND 1000),
    -- By the log's clock.
    appended_at  timestamptz,
    found_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    resolved_at  timestamptz,
    resolution   text CHECK (length(resolution) BETWEEN 1 AND 1000),
    UNIQUE (topic, partition, first_offset, digest),
    CONSTRAINT span CHECK (next_offset = first_offset + 1 OR (next_offset > first_offset AND value IS NULL)),
    CONSTRAINT resolved_for_a_reason CHECK ((resolved_at IS NULL) = (resolution IS NULL))
);
CREATE INDEX webhook_poison_open ON tally.webhook_poison (number) WHERE resolved_at IS NULL;

CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.webhook_poison
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('what was acknowledged is kept');
CREATE TRIGGER identity BEFORE UPDATE ON tally.webhook_poison FOR EACH ROW
    WHEN (old.resolved_at IS NOT NULL
          OR (to_jsonb(old) - 'resolved_at' - 'resolution') IS DISTINCT FROM (to_jsonb(new) - 'resolved_at' - 'resolution'))
    EXECUTE FUNCTION tally.refuse_change('a record that was set aside is resolved once, and never changed');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.webhook_offset
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('who loses its place reads everything again');

-- Like the webhooks themselves: no tenant may read them, so the reader's role gets no grant.
