-- The outbox of a restored dump is not trimmed by what was read in the life before.
--
-- A dump that is restored into another server keeps its rows and begins its transaction numbers anew. How far a follower had
-- read is a transaction's number and a row's: by the first alone, everything that the new life writes comes before a place of
-- the old one, and was trimmed the day it was written, read or not. Rows' numbers go on in a restored dump. So a row goes only
-- when it comes before the place in both orders; what committed late waits for the place of another day.
-- As in migration 23, but for `least`.
CREATE OR REPLACE FUNCTION tally.retain(tenant integer, most integer, is_dry boolean)
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
    -- The least that any follower had read by then, in both orders.
    SELECT r.xid, r.number, min(r.number) OVER () AS least INTO passed
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
         WHERE x.tenant_id = tenant AND (x.xid, x.number) <= (passed.xid, passed.number) AND x.number <= passed.least
         LIMIT most FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM tally.outbox x USING old WHERE x.ctid = old.place AND NOT is_dry RETURNING 1
    )
    SELECT count(*), coalesce(sum(length), 0) INTO trimmed, bytes FROM old;
    RETURN NEXT;
    PERFORM set_config('tally.retaining', '', true);
END $$;
