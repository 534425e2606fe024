-- Webhooks: what providers tell us, durable before it is acknowledged, and worked off by claims.
--
-- Three tables, because each is used otherwise. The guard decides what was told before: narrow, and never partitioned,
-- because a unique index on a partitioned table must contain the partition's key and then no longer recognises anything.
-- tally.webhook_events is how an event stands and what it says in a few columns: a worker joins it set-based, and never
-- reads a body. The bodies are the evidence: partitioned by the day, so that old days can be taken away as a whole.

CREATE SEQUENCE tally.webhook_number;

CREATE TABLE tally.webhook_guard (
    provider  text COLLATE "C" NOT NULL CHECK (octet_length(provider) BETWEEN 1 AND 40),
    dedup_key text COLLATE "C" NOT NULL CHECK (octet_length(dedup_key) BETWEEN 1 AND 500),
    -- Of the event in tally.webhook_events.
    number    bigint NOT NULL,
    PRIMARY KEY (provider, dedup_key)
);

CREATE TABLE tally.webhook_events (
    number           bigint PRIMARY KEY,
    provider         text COLLATE "C" NOT NULL,
    -- The provider's own id of the event, or what stands for it: the guard's dedup_key.
    event_id         text COLLATE "C" NOT NULL,
    type             text COLLATE "C" NOT NULL CHECK (octet_length(type) <= 800),
    -- What it says of a movement of money; all of it NULL where it tells of none.
    purpose          text COLLATE "C" CHECK (purpose IN ('charge', 'refund', 'transfer', 'payout')),
    provider_id      text COLLATE "C",
    reference        text COLLATE "C",
    parent           text COLLATE "C",
    amount_micros    bigint,
    currency         text COLLATE "C",
    state            text COLLATE "C" CHECK (state IN ('waiting', 'moving', 'moved', 'failed', 'returned')),
    -- The provider's own word for that state.
    word             text COLLATE "C",
    occurred_at      timestamptz,
    received_at      timestamptz NOT NULL,
    status           text COLLATE "C" NOT NULL DEFAULT 'UNPROCESSED'
                     CHECK (status IN ('UNPROCESSED', 'IN_PROCESSING', 'PROCESSED_OK', 'PROCESSED_COMPENSATED',
                                       'DEAD_LETTER')),
    -- In every later UPDATE: a worker that lost its lease can no longer write.
    claim_number     integer NOT NULL DEFAULT 0 CHECK (claim_number >= 0),
    claimed_by       text,
    -- The lease, by the database's clock.
    processing_until timestamptz,
    -- Failures that were the event's own; outages are none.
    tries            integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    due_at           timestamptz NOT NULL,
    processed_at     timestamptz,
    reason           text,
    CONSTRAINT leased CHECK ((status = 'IN_PROCESSING') = (processing_until IS NOT NULL)),
    CONSTRAINT processed CHECK ((status IN ('PROCESSED_OK', 'PROCESSED_COMPENSATED')) = (processed_at IS NOT NULL)),
    CONSTRAINT claimed CHECK (status = 'UNPROCESSED' OR claim_number > 0),
    CONSTRAINT dead_for_a_reason CHECK (status <> 'DEAD_LETTER' OR reason IS NOT NULL),
    CONSTRAINT movement_is_whole CHECK (num_nulls(purpose, provider_id, reference, parent, amount_micros, currency,
                                                  state, word) IN (0, 8))
) WITH (fillfactor = 80);

-- All that a worker's poll looks at: it costs the same however many events are done.
CREATE INDEX webhook_due ON tally.webhook_events (due_at, number) WHERE status = 'UNPROCESSED';
CREATE INDEX webhook_leased ON tally.webhook_events (processing_until) WHERE status = 'IN_PROCESSING';
CREATE INDEX webhook_dead ON tally.webhook_events (number) WHERE status = 'DEAD_LETTER';

CREATE TABLE tally.webhook_body (
    received_at timestamptz NOT NULL,
    number      bigint NOT NULL,
    body        bytea NOT NULL,
    PRIMARY KEY (received_at, number)
) PARTITION BY RANGE (received_at);
-- The backstop: no webhook is refused because nobody made its day's partition.
CREATE TABLE tally.webhook_body_default PARTITION OF tally.webhook_body DEFAULT;

-- Days whose bodies were taken away on purpose: their absence is no loss.
CREATE TABLE tally.webhook_body_detached (
    day date PRIMARY KEY,
    at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- How far a provider's own list of events was read. It moves in the commit that stores what was read.
CREATE TABLE tally.webhook_cursor (
    provider text COLLATE "C" PRIMARY KEY,
    cursor   text NOT NULL,
    -- Of two who read at once, one moves it.
    version  bigint NOT NULL CHECK (version > 0),
    read_at  timestamptz NOT NULL
);

-- Partitions of today and the days to come, in UTC; how many were made. Attached, not created in place: webhooks go on
-- being stored meanwhile. A day that has bodies in the default already keeps them there.
CREATE FUNCTION tally.webhook_body_ahead(days integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog SET timezone = 'UTC' AS $$
DECLARE
    day  date;
    name text;
    made integer := 0;
BEGIN
    FOR day IN SELECT (clock_timestamp()::date + n) FROM generate_series(0, days) AS n LOOP
        name := 'webhook_body_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('tally.' || name) IS NOT NULL
                   OR EXISTS (SELECT 1 FROM tally.webhook_body_default
                               WHERE received_at >= day AND received_at < day + 1);
        EXECUTE format('CREATE TABLE tally.%I (LIKE tally.webhook_body INCLUDING ALL)', name);
        EXECUTE format('ALTER TABLE tally.webhook_body ATTACH PARTITION tally.%I FOR VALUES FROM (%L) TO (%L)',
                       name, day::timestamptz, (day + 1)::timestamptz);
        EXECUTE format('CREATE TRIGGER kept BEFORE TRUNCATE ON tally.%I FOR EACH STATEMENT '
                       'EXECUTE FUNCTION tally.refuse_change(''bodies are evidence: detach their day'')', name);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;

-- Takes whole days that are older than `days` out of the table, as tables of their own that nothing here reads; their
-- names. A day with an event that is not finished stays.
CREATE FUNCTION tally.webhook_body_detach(days integer) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog SET timezone = 'UTC' AS $$
DECLARE
    name text;
    day  date;
BEGIN
    FOR name IN SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                 WHERE i.inhparent = 'tally.webhook_body'::regclass AND c.relname ~ '^webhook_body_[0-9]{8}$'
                 ORDER BY 1 LOOP
        day := to_date(right(name, 8), 'YYYYMMDD');
        -- One question for each partial index.
        CONTINUE WHEN day + days >= clock_timestamp()::date
                   OR EXISTS (SELECT 1 FROM tally.webhook_events e
                               WHERE e.status = 'UNPROCESSED' AND e.received_at >= day AND e.received_at < day + 1)
                   OR EXISTS (SELECT 1 FROM tally.webhook_events e
                               WHERE e.status = 'IN_PROCESSING' AND e.received_at >= day AND e.received_at < day + 1)
                   OR EXISTS (SELECT 1 FROM tally.webhook_events e
                               WHERE e.status = 'DEAD_LETTER' AND e.received_at >= day AND e.received_at < day + 1);
        EXECUTE format('ALTER TABLE tally.webhook_body DETACH PARTITION tally.%I', name);
        INSERT INTO tally.webhook_body_detached (day) VALUES (day);
        RETURN NEXT name;
    END LOOP;
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.webhook_guard
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('an event that is forgotten could be told again');
-- For each row, so that a partition inherits it: a statement on the partition itself must not get past.
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON tally.webhook_body
    FOR EACH ROW EXECUTE FUNCTION tally.refuse_change('bodies are evidence: detach their day');
CREATE TRIGGER kept BEFORE TRUNCATE ON tally.webhook_body
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('bodies are evidence: detach their day');
CREATE TRIGGER kept BEFORE TRUNCATE ON tally.webhook_body_default
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('bodies are evidence: detach their day');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.webhook_events
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('what was acknowledged is kept');
CREATE TRIGGER begins BEFORE INSERT ON tally.webhook_events FOR EACH ROW
    WHEN (new.status <> 'UNPROCESSED' OR new.claim_number <> 0 OR new.tries <> 0)
    EXECUTE FUNCTION tally.refuse_change('an event begins unprocessed');
CREATE TRIGGER identity BEFORE UPDATE ON tally.webhook_events FOR EACH ROW
    WHEN (old.number <> new.number OR old.provider <> new.provider OR old.event_id <> new.event_id
          OR old.type <> new.type OR old.received_at <> new.received_at
          OR old.purpose IS DISTINCT FROM new.purpose OR old.provider_id IS DISTINCT FROM new.provider_id
          OR old.reference IS DISTINCT FROM new.reference OR old.parent IS DISTINCT FROM new.parent
          OR old.amount_micros IS DISTINCT FROM new.amount_micros OR old.currency IS DISTINCT FROM new.currency
          OR old.state IS DISTINCT FROM new.state OR old.word IS DISTINCT FROM new.word
          OR old.occurred_at IS DISTINCT FROM new.occurred_at)
    EXECUTE FUNCTION tally.refuse_change('what a provider told never changes');
CREATE TRIGGER transition BEFORE UPDATE ON tally.webhook_events FOR EACH ROW
    WHEN (old.status <> new.status AND NOT (
              (old.status = 'UNPROCESSED' AND new.status = 'IN_PROCESSING')
           OR (old.status = 'IN_PROCESSING' AND new.status IN ('UNPROCESSED', 'PROCESSED_OK', 'PROCESSED_COMPENSATED',
                                                               'DEAD_LETTER'))
           OR (old.status = 'DEAD_LETTER' AND new.status = 'UNPROCESSED')))
    EXECUTE FUNCTION tally.refuse_change('that is no step of an event');
-- A claim counts up by one: taking an event, or taking it over once its lease is over, and never before.
CREATE TRIGGER fence BEFORE UPDATE ON tally.webhook_events FOR EACH ROW
    WHEN (new.claim_number <> old.claim_number
              + (new.status = 'IN_PROCESSING'
                 AND (old.status = 'UNPROCESSED' OR new.claim_number <> old.claim_number))::integer
          OR (old.status = 'IN_PROCESSING' AND new.status = 'IN_PROCESSING'
              AND new.claim_number <> old.claim_number AND old.processing_until > clock_timestamp()))
    EXECUTE FUNCTION tally.refuse_change('a claim is counted, and a lease that runs is not taken over');
-- What is finished stays as it is; only a dead letter can be tried again.
CREATE TRIGGER finished BEFORE UPDATE ON tally.webhook_events FOR EACH ROW
    WHEN (old.status IN ('PROCESSED_OK', 'PROCESSED_COMPENSATED'))
    EXECUTE FUNCTION tally.refuse_change('what is processed stays so');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.webhook_cursor
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('who loses its place reads everything again');

-- These rows are the provider's word to the operator: no tenant may read them, so the reader's role gets no grant.

SELECT tally.webhook_body_ahead(7);
