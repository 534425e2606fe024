-- name: offsets
SELECT partition, next_offset FROM tally.webhook_offset WHERE topic = $1 AND partition = ANY ($2::integer[]);

-- name: move
-- In the commit that stores what lies before it. Set, not raised: a lower number only reads again what the guard knows,
-- and a topic that was made anew begins at nothing. In the order of the partitions, like every other lock.
INSERT INTO tally.webhook_offset AS o (topic, partition, next_offset, read_at)
SELECT $1, moved.partition, moved.next_offset, clock_timestamp()
  FROM unnest($2::integer[], $3::bigint[]) AS moved (partition, next_offset)
 ORDER BY moved.partition
ON CONFLICT (topic, partition) DO UPDATE SET next_offset = excluded.next_offset, read_at = excluded.read_at;

-- name: set_aside
-- Read again, it is the same row.
INSERT INTO tally.webhook_poison (topic, partition, first_offset, next_offset, key, value, digest, reason, appended_at)
SELECT $1, p.partition, p.first_offset, p.next_offset, p.key, p.value, sha256(coalesce(p.value, '')), p.reason,
       to_timestamp(p.appended)
  FROM unnest($2::integer[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bytea[], $7::text[], $8::float8[])
       AS p (partition, first_offset, next_offset, key, value, reason, appended)
 ORDER BY p.partition, p.first_offset
ON CONFLICT (topic, partition, first_offset, digest) DO NOTHING
RETURNING number;

-- name: open
SELECT number, topic, partition, first_offset, next_offset, length(value) AS bytes, reason, appended_at, found_at
  FROM tally.webhook_poison WHERE resolved_at IS NULL AND number > $1 ORDER BY number LIMIT $2;

-- name: value
-- Locked: of two who try the same one, the second finds it resolved.
SELECT value FROM tally.webhook_poison WHERE number = $1 AND resolved_at IS NULL FOR UPDATE;

-- name: resolve
UPDATE tally.webhook_poison
   SET resolved_at = clock_timestamp(), resolution = $2, resolved_by = nullif(current_setting('tally.author', true), '')
 WHERE number = $1 AND resolved_at IS NULL
RETURNING number;

-- name: count_open
SELECT count(*) FROM (SELECT 1 FROM tally.webhook_poison WHERE resolved_at IS NULL LIMIT $1) AS w;
