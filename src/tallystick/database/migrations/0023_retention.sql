-- What may be forgotten, and when: by a tenant's policy, and by nobody's hand.
--
-- Everything grew for ever. What a provider answered in its own words, what was told to those who follow the outbox, bodies
-- of webhooks and answers to people's decisions are kept for those who ask later; no decision reads them. `tally retain`
-- trims them by policy. What decisions read is never touched: verdicts, keys, first_sent_at, not_after, server errors,
-- orphans. An answer that is moved away is still found: the archive is a child of its table, so that whoever looks into
-- the table, in whatever release, looks into both.

CREATE TABLE tally.retention_policy (
    tenant_id     integer PRIMARY KEY REFERENCES tally.tenant,
    -- Days; NULL: kept for good. Below a month somebody would miss them: disputes are looked into that late.
    evidence_days integer CHECK (evidence_days BETWEEN 30 AND 36500),
    reply_days    integer CHECK (reply_days BETWEEN 30 AND 36500),
    outbox_days   integer CHECK (outbox_days BETWEEN 30 AND 36500),
    webhook_days  integer CHECK (webhook_days BETWEEN 30 AND 36500),
    changed_by    text NOT NULL,
    changed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE FUNCTION tally.retention_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM tally.journal_step(f.tenant_id, 'retention.policy', convert_to(to_jsonb(f)::text, 'UTF8')) FROM fresh f;
    RETURN NULL;
END $$;
CREATE TRIGGER made_journaled AFTER INSERT ON tally.retention_policy
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.retention_journaled();
CREATE TRIGGER changed_journaled AFTER UPDATE ON tally.retention_policy
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.retention_journaled();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.retention_policy
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a policy is changed in the open');

-- How far each follower of the outbox had read, by the day. One that never says so keeps everything.
CREATE TABLE tally.relayed (
    reader text COLLATE "C" NOT NULL CHECK (octet_length(reader) BETWEEN 1 AND 200),
    day    date NOT NULL,
    xid    xid8 NOT NULL,
    number bigint NOT NULL,
    PRIMARY KEY (reader, day)
);

-- Old answers to people's decisions. A child of the table: it is read with it, under its policies.
CREATE TABLE tally.reply_archive (PRIMARY KEY (key, tenant_id)) INHERITS (tally.reply);
ALTER TABLE tally.reply_archive ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON tally.reply_archive FOR SELECT TO tallystick_reader
    USING (tenant_id = (SELECT tally.current_tenant()));
GRANT SELECT ON tally.reply_archive TO tallystick_reader;
GRANT SELECT ON tally.retention_policy TO tallystick_reader;
ALTER TABLE tally.retention_policy ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON tally.retention_policy FOR SELECT TO tallystick_reader
    USING (tenant_id = (SELECT tally.current_tenant()));

-- A key that was answered is used, wherever its answer lies: the two primary keys do not know of each other.
CREATE FUNCTION tally.reply_is_new() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF EXISTS (SELECT FROM fresh f CROSS JOIN LATERAL (
                   SELECT FROM tally.reply_archive a WHERE a.key = f.key AND a.tenant_id = f.tenant_id OFFSET 0) AS a) THEN
        RAISE unique_violation USING MESSAGE = 'tally: this key was answered before, and its answer is in the archive';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER reply_is_new AFTER INSERT ON tally.reply
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.reply_is_new();

-- Only the functions below are ever retaining. Whoever says so by hand still lacks the right to delete or change.
CREATE FUNCTION tally.is_retaining() RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
    RETURN coalesce(current_setting('tally.retaining', true), '') = 'on';

DROP TRIGGER append_only ON tally.reply;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.reply
    FOR EACH STATEMENT WHEN (NOT tally.is_retaining())
    EXECUTE FUNCTION tally.refuse_change('its rows are never changed');
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.reply_archive
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('its rows are never changed');

-- As before; but of an attempt that is answered the provider's own words may go, and nothing else.
DROP TRIGGER answered_once ON tally.attempt;
CREATE TRIGGER answered_once BEFORE UPDATE ON tally.attempt FOR EACH ROW
    WHEN ((old.answer IS NOT NULL
           AND NOT (tally.is_retaining() AND new.evidence IS NULL
                    AND (to_jsonb(old) - 'evidence') = (to_jsonb(new) - 'evidence')))
          OR old.tenant_id <> new.tenant_id OR old.provider <> new.provider
          OR old.key <> new.key OR old.number <> new.number OR old.token <> new.token
          OR old.sent_at <> new.sent_at OR old.not_after <> new.not_after)
    EXECUTE FUNCTION tally.refuse_change('an attempt is answered once, and nothing else of it changes');
-- What is trimmed was journaled when it was answered, with the digest of the words.
DROP TRIGGER answer_journaled ON tally.attempt;
CREATE TRIGGER answer_journaled AFTER UPDATE ON tally.attempt
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT WHEN (NOT tally.is_retaining())
    EXECUTE FUNCTION tally.attempt_journaled();

-- The providers' own words of a tenant's attempts, intent by intent in the order of their keys: `last` is where to go on. They
-- go only where every attempt of the key has a final answer and none was the provider's own failure: elsewhere a person may
-- still have to read them. A dry run counts.
CREATE FUNCTION tally.retain_evidence(tenant integer, after bytea, most integer, is_dry boolean,
                                      OUT trimmed bigint, OUT bytes bigint, OUT last bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    days integer := (SELECT p.evidence_days FROM tally.retention_policy p WHERE p.tenant_id = tenant);
BEGIN
    PERFORM set_config('tally.retaining', 'on', true);
    WITH stretch AS MATERIALIZED (
        SELECT i.key, i.provider FROM tally.intent i
         WHERE i.tenant_id = tenant AND i.key > after ORDER BY i.key, i.provider LIMIT most
    ), old AS MATERIALIZED (
        SELECT a.ctid AS place, octet_length(a.evidence) AS length
          FROM stretch s
         CROSS JOIN LATERAL (SELECT a.ctid, a.evidence FROM tally.attempt a
                              WHERE a.tenant_id = tenant AND a.key = s.key AND a.provider = s.provider
                                AND a.evidence IS NOT NULL
                                AND a.answered_at < clock_timestamp() - make_interval(days => days)) AS a
         WHERE NOT EXISTS (SELECT FROM tally.attempt b
                            WHERE b.tenant_id = tenant AND b.key = s.key AND b.provider = s.provider
                              AND (b.answer IS NULL OR b.answer = 'unknown' OR b.server_error))
    ), gone AS (
        UPDATE tally.attempt a SET evidence = NULL FROM old WHERE a.ctid = old.place AND NOT is_dry
    )
    SELECT (SELECT count(*) FROM old), (SELECT coalesce(sum(length), 0) FROM old),
           (SELECT CASE WHEN count(*) = most THEN max(s.key) END FROM stretch s)
      INTO trimmed, bytes, last;
    PERFORM set_config('tally.retaining', '', true);
END $$;

-- What else of a tenant's may go now, at most so many rows of each kind.
CREATE FUNCTION tally.retain(tenant integer, most integer, is_dry boolean)
RETURNS TABLE (what text, trimmed bigint, bytes bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    policy   tally.retention_policy;
    passed   record;
BEGIN
    SELECT * INTO policy FROM tally.retention_policy p WHERE p.tenant_id = tenant;
    PERFORM set_config('tally.retaining', 'on', true);

    what := 'replies archived';
    IF is_dry THEN
        SELECT count(*), coalesce(sum(octet_length(r.request) + octet_length(r.body)), 0) INTO trimmed, bytes
          FROM ONLY tally.reply r
         WHERE r.tenant_id = tenant AND r.at < clock_timestamp() - make_interval(days => policy.reply_days);
    ELSE
        WITH old AS (
            DELETE FROM ONLY tally.reply r USING (
                SELECT o.ctid AS place FROM ONLY tally.reply o
                 WHERE o.tenant_id = tenant AND o.at < clock_timestamp() - make_interval(days => policy.reply_days)
                 LIMIT most FOR UPDATE SKIP LOCKED) AS o
             WHERE r.ctid = o.place RETURNING r.tenant_id, r.key, r.request, r.body, r.at
        ), moved AS (
            INSERT INTO tally.reply_archive (tenant_id, key, request, body, at)
            SELECT o.tenant_id, o.key, o.request, o.body, o.at FROM old o
        )
        SELECT count(*), coalesce(sum(octet_length(request) + octet_length(body)), 0) INTO trimmed, bytes FROM old;
    END IF;
    RETURN NEXT;

    what := 'outbox relayed';
    -- The least that any follower had read by then.
    SELECT r.xid, r.number INTO passed
      FROM (SELECT DISTINCT ON (m.reader) m.xid, m.number
              FROM tally.relayed m
             WHERE m.day < (clock_timestamp() AT TIME ZONE 'UTC')::date - policy.outbox_days
             ORDER BY m.reader, m.day DESC) AS r
     WHERE (SELECT count(DISTINCT m.reader) FROM tally.relayed m)
           = (SELECT count(DISTINCT m.reader) FROM tally.relayed m
               WHERE m.day < (clock_timestamp() AT TIME ZONE 'UTC')::date - policy.outbox_days)
     ORDER BY r.xid, r.number LIMIT 1;
    WITH old AS (
        SELECT x.ctid AS place, coalesce(octet_length(x.body), 0) AS length FROM tally.outbox x
         WHERE x.tenant_id = tenant AND (x.xid, x.number) <= (passed.xid, passed.number)
         LIMIT most FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM tally.outbox x USING old WHERE x.ctid = old.place AND NOT is_dry RETURNING 1
    )
    SELECT count(*), coalesce(sum(length), 0) INTO trimmed, bytes FROM old;
    RETURN NEXT;
    PERFORM set_config('tally.retaining', '', true);
END $$;

-- For how long every tenant wants bodies of webhooks: they are nobody's alone, so the longest wish counts, and whoever has
-- none wants them for good.
CREATE FUNCTION tally.webhook_body_days() RETURNS integer LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
    RETURN (SELECT CASE WHEN count(*) = count(p.webhook_days) THEN max(p.webhook_days) END
              FROM tally.tenant t LEFT JOIN tally.retention_policy p ON p.tenant_id = t.tenant_id);
REVOKE EXECUTE ON FUNCTION tally.retain_evidence(integer, bytea, integer, boolean),
                           tally.retain(integer, integer, boolean), tally.webhook_body_days() FROM PUBLIC;
