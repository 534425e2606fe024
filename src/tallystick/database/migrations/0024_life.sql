-- A database that was restored, copied or taken over by a standby goes on by itself, and no longer waits for a person.
--
-- Each time something hints that this may not be the life of the database that was here before (another server start,
-- system, timeline, database or table), a row of tally.life is written: what was lost, if anything was, is younger than
-- known_until, because a backup and a standby are a prefix of the history. Until a provider's books have been read
-- completely from then on (tally.reading), its keys count as if they were first used then, and payouts that were created
-- since are asked for by name before they are sent (core.intent).
CREATE FUNCTION tally.whereabouts_now(
    OUT system bigint, OUT timeline integer, OUT database oid, OUT started_at timestamptz, OUT intents oid)
LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT h.system, h.timeline, h.database, pg_postmaster_start_time(), 'tally.intent'::regclass::oid
      FROM tally.here() AS h
$$;

ALTER TABLE tally.whereabouts ADD COLUMN started_at timestamptz, ADD COLUMN intents oid;
UPDATE tally.whereabouts w SET started_at = n.started_at, intents = n.intents FROM tally.whereabouts_now() AS n;

CREATE TABLE tally.life (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- NULL: whichever provider. Else the one whose books have shown that a life was lost.
    provider    text COLLATE "C",
    known_until timestamptz NOT NULL,
    began_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    why         text NOT NULL
);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.life
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a life that is forgotten could have paid');

-- Up to which life a provider's books have been read. One without a row was not used before the newest of them.
CREATE TABLE tally.reading (
    provider    text COLLATE "C" PRIMARY KEY,
    life        bigint NOT NULL REFERENCES tally.life,
    complete_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- How it came to its end: the books were read, or a person left it out.
    how         text NOT NULL
);
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.reading
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('what was read need not be read again');

-- What of this provider's books is still to be read: from when on, and since when nobody but this life sends.
CREATE FUNCTION tally.unread(of text, OUT known_until timestamptz, OUT began_at timestamptz, OUT life bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT min(l.known_until), max(l.began_at), max(l.number)
      FROM tally.life l
     WHERE (l.provider IS NULL OR l.provider = of)
       AND l.number > coalesce((SELECT r.life FROM tally.reading r WHERE r.provider = of),
                               (SELECT max(n.number) - 1 FROM tally.life n WHERE n.provider IS NULL OR n.provider = of))
$$;

-- Movements of any purpose: a charge or a refund that no attempt explains is kept like a payout.
ALTER TABLE tally.orphan ADD COLUMN purpose text;
