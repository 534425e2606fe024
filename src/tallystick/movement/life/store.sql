-- name: look
-- In the transaction that lets something be sent: a standby may have taken over since the last one.
SELECT w.database <> 0 AS is_trusted, w.system, w.timeline, w.database, w.started_at, w.intents,
       n.system AS system_now, n.timeline AS timeline_now, n.database AS database_now, n.started_at AS started_at_now,
       n.intents AS intents_now, (pg_current_wal_insert_lsn() - '0/0')::bigint AS position, clock_timestamp() AS now
  FROM tally.whereabouts w, tally.whereabouts_now() AS n

-- name: begin_life
-- Once for all who notice it: the row's lock keeps the others behind, and they find it done. $2: whatever is stored.
-- What is newest is looked for among the young first: the whole of it would be read for nothing. However old that is: a
-- shop may have sent nothing for months before the backup was taken. Without any step it is as old as the installation.
WITH moved AS (
    UPDATE tally.whereabouts w
       SET system = n.system, timeline = n.timeline, started_at = n.started_at, intents = n.intents,
           database = CASE w.database WHEN 0 THEN 0 ELSE n.database END
      FROM tally.whereabouts_now() AS n
     WHERE $2 OR (w.system, w.timeline, w.started_at, w.intents) IS DISTINCT FROM
                 (n.system, n.timeline, n.started_at, n.intents) OR w.database NOT IN (0, n.database)
    RETURNING 1
)
INSERT INTO tally.life (known_until, why)
SELECT coalesce(greatest(
           coalesce((SELECT max(sent_at) FROM tally.attempt WHERE sent_at > clock_timestamp() - interval '1 hour'),
                    (SELECT max(sent_at) FROM tally.attempt WHERE sent_at > clock_timestamp() - interval '1 day'),
                    (SELECT max(sent_at) FROM tally.attempt)),
           coalesce((SELECT max(created_at) FROM tally.settlement WHERE created_at > clock_timestamp() - interval '1 hour'),
                    (SELECT max(created_at) FROM tally.settlement WHERE created_at > clock_timestamp() - interval '1 day'),
                    (SELECT max(created_at) FROM tally.settlement))),
           (SELECT min(created_at) FROM tally.tenant)), $1
  FROM moved
RETURNING number;

-- name: prove
-- A life that was lost is proven at this provider, once until its books are read. What it lost is younger than the newest
-- step before the movement that shows it ($2): those of before the backup are older, and those of this life younger.
-- Without its time: whatever a provider answers from memory is at most as old as the longest memory there is.
INSERT INTO tally.life (provider, known_until, why, shown_by)
SELECT $1, coalesce(greatest((SELECT max(sent_at) FROM tally.attempt WHERE sent_at < m.made_at),
                             (SELECT max(created_at) FROM tally.settlement WHERE created_at < m.made_at)),
                    (SELECT min(created_at) FROM tally.tenant)), $3, $4
  FROM (SELECT coalesce($2::timestamptz, clock_timestamp() - interval '30 days') AS made_at) AS m
   -- What the books have shown before is known.
 WHERE NOT tally.is_stopped($1) AND NOT EXISTS (
        SELECT FROM tally.orphan o
         WHERE o.provider = $1 AND (o.provider_id = $4 OR $5::bytea BETWEEN o.key_from AND o.key_to))
RETURNING number;

-- name: settled
-- Of those that nobody has read, the newest that is old enough: restarts that go on and on must not keep the ones before
-- them from being read. They begin in the order of their numbers, so all before it are old enough, however they are dated.
SELECT max(l.number)
  FROM tally.life l
 WHERE (l.provider IS NULL OR l.provider = $1)
   AND l.number > coalesce((SELECT r.life FROM tally.reading r WHERE r.provider = $1), 0)
   AND l.began_at + $2::interval <= clock_timestamp();

-- name: alone_since
-- Also when it was confirmed while the clock was ahead, no later than now.
SELECT least(greatest((tally.unread($1)).began_at, w.confirmed_at), clock_timestamp()) FROM tally.whereabouts w;

-- name: stopped
SELECT DISTINCT l.provider FROM tally.life l WHERE l.shown_by IS NOT NULL AND tally.is_stopped(l.provider) ORDER BY 1;

-- name: unread
SELECT u.known_until, u.began_at, u.life, clock_timestamp() AS now FROM tally.unread($1) AS u WHERE u.life IS NOT NULL;

-- name: read
INSERT INTO tally.reading (provider, life, how) VALUES ($1, $2, $3)
    ON CONFLICT (provider) DO UPDATE
   SET life = greatest(tally.reading.life, excluded.life), complete_at = clock_timestamp(), how = excluded.how;
