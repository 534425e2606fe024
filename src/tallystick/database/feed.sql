-- name: journal
-- Commit order, not sequence order: a row whose transaction began before some other still runs is held back,
-- because that other one may yet commit rows that sort before it.
SELECT xid::text, number, tenant_id, subject AS topic, operation_id, body, digest
  FROM tally.journal
 WHERE (xid, number) > ($1::text::xid8, $2) AND xid < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY xid, number LIMIT $3;

-- name: relayed
-- By the day, and never backwards: a follower that begins anew keeps what others may still need. Nor ahead of what can be
-- read: what commits later would be gone before it was read.
WITH place AS (
    SELECT $2::text::xid8 AS xid, $2::text::xid8 < pg_snapshot_xmin(pg_current_snapshot()) AS is_readable
), moved AS (
    INSERT INTO tally.relayed AS r (reader, day, xid, number)
    SELECT $1, (clock_timestamp() AT TIME ZONE 'UTC')::date, p.xid, $3 FROM place p WHERE p.is_readable
        ON CONFLICT (reader, day) DO UPDATE SET xid = excluded.xid, number = excluded.number
     WHERE (excluded.xid, excluded.number) > (r.xid, r.number)
)
SELECT is_readable FROM place;

-- name: outbox
SELECT xid::text, number, tenant_id, topic, operation_id, body, NULL::bytea AS digest
  FROM tally.outbox
 WHERE (xid, number) > ($1::text::xid8, $2) AND xid < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY xid, number LIMIT $3;

-- name: followers
-- How far each has read, and since when it says so. No follower stands at or after what can be read now, unless its place is
-- of a life whose transactions counted further.
SELECT DISTINCT ON (r.reader) r.reader, r.xid::text, r.number, r.day,
       r.xid >= pg_snapshot_xmin(pg_current_snapshot()) AS is_lost
  FROM tally.relayed r WHERE $1::text IS NULL OR r.reader = $1 ORDER BY r.reader, r.day DESC;

-- name: forget
DELETE FROM tally.relayed WHERE reader = $1;

-- name: unread
-- As `outbox`, with what each row is about: an operation's own row describes it.
SELECT x.xid::text, x.number, t.name AS tenant, x.topic, x.operation_id, coalesce(x.body, o.body) AS body
  FROM (SELECT * FROM tally.outbox
         WHERE (xid, number) > ($1::text::xid8, $2) AND xid < pg_snapshot_xmin(pg_current_snapshot())
         ORDER BY xid, number LIMIT $3) AS x
  JOIN tally.tenant t USING (tenant_id)
  LEFT JOIN tally.operation o ON o.tenant_id = x.tenant_id AND o.id = x.operation_id
 ORDER BY x.xid, x.number;
