-- What a provider's books show of a life that this database lost, proves it, and stops sending there until they are read.
--
-- A hint (another server start, timeline, ...) has the books read, and stops nothing; and a machine that is rolled back with
-- all its memory gives none. But every movement now says whose it is: the installation, made here once, and what it pays
-- for. One that is ours, and that no attempt recorded here explains, was made by a life that was lost (core/mark.py).
--
-- The mark is of the intent, and never changes: a further attempt must have the bytes of the first. Intents of before, and of
-- the release before, have none, and are sent without one.
CREATE TABLE tally.installation (
    id      uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX one_installation ON tally.installation ((true));
INSERT INTO tally.installation DEFAULT VALUES;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.installation
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('what was sent under this id is known by it');

CREATE FUNCTION tally.installation_id() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog AS $$ SELECT id::text FROM tally.installation $$;

-- What is paid for, by its room: settlement/..., order/...
ALTER TABLE tally.intent ADD COLUMN mark text;

DROP TRIGGER identity ON tally.intent;
CREATE TRIGGER identity BEFORE UPDATE ON tally.intent FOR EACH ROW
    WHEN (old.tenant_id <> new.tenant_id OR old.provider <> new.provider OR old.key <> new.key
          OR old.purpose <> new.purpose OR old.instruction <> new.instruction OR old.account <> new.account
          OR old.first_sent_at <> new.first_sent_at OR new.attempts < old.attempts
          OR old.subject IS DISTINCT FROM new.subject OR (old.ended AND NOT new.ended)
          OR old.since IS DISTINCT FROM new.since OR old.mark IS DISTINCT FROM new.mark)
    EXECUTE FUNCTION tally.refuse_change('what was asked, and when first, never changes');

-- shown_by: the provider's id of the movement that proved it; NULL: a hint alone.
ALTER TABLE tally.life ADD COLUMN shown_by text;

-- Whether a lost life is proven at this provider, and its books are not read since.
CREATE FUNCTION tally.is_stopped(of text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT EXISTS (
        SELECT FROM tally.life l
         WHERE l.provider = of AND l.shown_by IS NOT NULL
           AND l.number > coalesce((SELECT r.life FROM tally.reading r WHERE r.provider = of), 0))
$$;
