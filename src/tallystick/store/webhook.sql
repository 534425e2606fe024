-- name: append
-- One statement for many events, and so one round trip: the guard decides which are new, and only those are stored. In the
-- order of the keys, so that two batches wait for each other in one direction only; who meets a key that another
-- transaction is writing waits for its end, so a repetition is never acknowledged before the first telling is durable.
-- Columns of text come joined ($1 to $12), and the bodies as one, with the first byte and the length of each: the driver
-- would take longer over the elements of arrays than all else takes. Texts are one element longer than the rest, because a
-- single empty text would be an array of nothing.
WITH given AS MATERIALIZED (
    SELECT nextval('tally.webhook_number') AS number, g.*
      FROM unnest(string_to_array($1, E'\x1e'), string_to_array($2, E'\x1e'), string_to_array($3, E'\x1e'),
                  string_to_array($4, E'\x1e', E'\x1d'), string_to_array($5, E'\x1e', E'\x1d'),
                  string_to_array($6, E'\x1e', E'\x1d'), string_to_array($7, E'\x1e', E'\x1d'),
                  string_to_array($8, E'\x1e', E'\x1d'), string_to_array($9, E'\x1e', E'\x1d'),
                  string_to_array($10, E'\x1e', E'\x1d'), string_to_array($11, E'\x1e', E'\x1d'),
                  string_to_array($12, E'\x1e', E'\x1d'), $13::text::bigint[], $14::text::bigint[],
                  $15::text::integer[], $16::text::integer[])
           WITH ORDINALITY
           AS g (provider, event_id, type, purpose, provider_id, reference, parent, currency, state, word, object_id,
                 object_purpose, amount_micros, occurred, first, length, position)
     WHERE g.length IS NOT NULL
), fresh AS (
    INSERT INTO tally.webhook_guard (provider, dedup_key, number)
    SELECT provider, event_id, number FROM given
    ON CONFLICT DO NOTHING
    RETURNING number
), stored AS (
    -- What tells of no movement and names none concerns nobody: it is done.
    INSERT INTO tally.webhook_events (number, provider, event_id, type, purpose, provider_id, reference, parent, currency,
                                      state, word, object_id, object_purpose, amount_micros, occurred_at, received_at,
                                      due_at, status, processed_at)
    SELECT number, provider, event_id, type, purpose, provider_id, reference, parent, currency, state, word, object_id,
           object_purpose, amount_micros, timestamptz '2000-01-01 00:00:00Z' + occurred * interval '1 microsecond',
           statement_timestamp(), statement_timestamp(),
           CASE WHEN purpose IS NULL AND object_purpose IS NULL THEN 'PROCESSED_OK' ELSE 'UNPROCESSED' END,
           CASE WHEN purpose IS NULL AND object_purpose IS NULL THEN statement_timestamp() END
      FROM fresh JOIN given USING (number)
), bodies AS (
    INSERT INTO tally.webhook_body (received_at, number, body)
    SELECT statement_timestamp(), number, substring($17::bytea FROM first FOR length) FROM fresh JOIN given USING (number)
)
-- The repetitions: there are fewer of them to tell of.
SELECT position FROM given WHERE NOT EXISTS (SELECT FROM fresh WHERE fresh.number = given.number);

-- name: claim
-- The poll and the watchdog in one: what is due, and what somebody held past his lease. By the database's clock.
-- SKIP LOCKED: two workers never share an event, and none waits for the other. By place (ctid), as settlements are.
WITH claimed AS (
    UPDATE tally.webhook_events e
       SET status = 'IN_PROCESSING', claim_number = e.claim_number + 1, claimed_by = $3,
           processing_until = clock_timestamp() + $2::interval
     WHERE e.ctid = ANY (
               ARRAY(SELECT ctid FROM tally.webhook_events
                      WHERE status = 'IN_PROCESSING' AND processing_until <= statement_timestamp()
                      ORDER BY processing_until LIMIT $1 FOR UPDATE SKIP LOCKED)
            || ARRAY(SELECT ctid FROM tally.webhook_events
                      WHERE status = 'UNPROCESSED' AND due_at <= statement_timestamp()
                      ORDER BY due_at, number LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING e.number, e.claim_number, e.provider, e.event_id, e.type, e.purpose, e.provider_id, e.reference, e.parent,
              e.amount_micros, e.currency, e.state, e.word, e.object_id, e.object_purpose, e.occurred_at, e.received_at,
              e.tries
)
SELECT * FROM claimed ORDER BY number;

-- name: renew
-- The fence, here as in every later UPDATE: who lost an event does not get it back by renewing.
UPDATE tally.webhook_events e SET processing_until = clock_timestamp() + $3::interval
  FROM unnest($1::text::bigint[], $2::text::integer[]) AS mine (n, claim)
 WHERE e.number = mine.n AND e.claim_number = mine.claim AND e.status || '' = 'IN_PROCESSING'
RETURNING e.number;

-- name: finish
-- The row is found by its primary key; written so (status || '') that no plan takes the partial index for it.
UPDATE tally.webhook_events e
   SET status = mine.status, processing_until = NULL, tries = mine.tries, reason = mine.reason,
       processed_at = CASE WHEN mine.status IN ('PROCESSED_OK', 'PROCESSED_COMPENSATED') THEN clock_timestamp() END,
       due_at = CASE mine.status WHEN 'UNPROCESSED' THEN clock_timestamp() + mine.after * interval '1 second'
                     ELSE e.due_at END
  FROM unnest($1::text::bigint[], $2::text::integer[], $3::text::text[], $4::text::integer[], $5::text::text[],
              $6::text::float8[])
       AS mine (n, claim, status, tries, reason, after)
 WHERE e.number = mine.n AND e.claim_number = mine.claim AND e.status || '' = 'IN_PROCESSING'
RETURNING e.number;

-- name: list
SELECT number, provider, event_id, type, purpose, provider_id, reference, amount_micros, currency, state,
       object_id, status, tries, reason, received_at, due_at, processed_at
  FROM tally.webhook_events
 WHERE number < $1 {filters}
 ORDER BY number DESC LIMIT $2;

-- name: find
-- By number, or by the guard, whose key the provider's id is: of every provider that ever told something, a handful.
WITH RECURSIVE known AS (
    (SELECT provider FROM tally.webhook_guard ORDER BY provider LIMIT 1)
     UNION ALL
    SELECT (SELECT g.provider FROM tally.webhook_guard g WHERE g.provider > k.provider ORDER BY g.provider LIMIT 1)
      FROM known k WHERE k.provider IS NOT NULL
), meant AS (
    SELECT g.number FROM known k
     CROSS JOIN LATERAL (SELECT number FROM tally.webhook_guard g
                          WHERE g.provider = k.provider AND g.dedup_key = $1 OFFSET 0) AS g
     UNION SELECT $2::bigint
)
SELECT e.number, e.status
  FROM meant
 CROSS JOIN LATERAL (SELECT e.number, e.status FROM tally.webhook_events e WHERE e.number = meant.number
                      UNION ALL
                     -- What it told was let go; what became of it was not.
                     SELECT v.number, v.status FROM tally.webhook_verdict v WHERE v.number = meant.number
                     OFFSET 0) AS e;

-- name: retry
-- Only dead letters: what is processed stays so, and the rest is tried anyway.
UPDATE tally.webhook_events e
   SET status = 'UNPROCESSED', tries = 0, due_at = clock_timestamp()
 WHERE e.status = 'DEAD_LETTER' AND ($1::bigint[] IS NULL OR e.number = ANY ($1))
RETURNING e.number;

-- name: body
SELECT body FROM tally.webhook_body WHERE received_at = $1 AND number = $2;

-- name: cursor
SELECT cursor, version FROM tally.webhook_cursor WHERE provider = $1;

-- name: move_cursor
-- Of two who read the same page at once, one moves the cursor; the other's events were repetitions anyway.
INSERT INTO tally.webhook_cursor AS c (provider, cursor, version, read_at)
VALUES ($1, $2, $3 + 1, clock_timestamp())
ON CONFLICT (provider) DO UPDATE SET cursor = excluded.cursor, version = excluded.version, read_at = excluded.read_at
 WHERE c.version = $3
RETURNING c.version;

-- name: now
SELECT clock_timestamp();

-- name: ahead
SELECT tally.webhook_body_ahead($1);

-- name: detach
-- Bodies are nobody's alone: they go when every tenant lets them go. $1 is for those without a policy; one whose policy says
-- nothing of bodies keeps them.
SELECT tally.webhook_body_detach(wished.days)
  FROM (SELECT CASE WHEN bool_or(p.tenant_id IS NOT NULL AND p.webhook_days IS NULL) THEN NULL
                    ELSE coalesce(max(coalesce(p.webhook_days, $1::integer)), $1::integer) END AS days
          FROM tally.tenant t LEFT JOIN tally.retention_policy p ON p.tenant_id = t.tenant_id) AS wished
 WHERE wished.days IS NOT NULL;

-- name: notify
SELECT pg_notify('tally_webhook', '');

-- name: figures
-- Of the oldest that are due: bounded, whatever waits.
SELECT (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(received_at)), 0)::float8
          FROM ((SELECT received_at FROM tally.webhook_events WHERE status = 'UNPROCESSED'
                  ORDER BY due_at, number LIMIT $1)
                UNION ALL
                (SELECT received_at FROM tally.webhook_events WHERE status = 'IN_PROCESSING'
                  ORDER BY processing_until LIMIT $1)) AS open) AS oldest_seconds,
       (SELECT count(*) FROM (SELECT 1 FROM tally.webhook_events WHERE status = 'UNPROCESSED' LIMIT $1) AS w) AS unprocessed,
       (SELECT count(*) FROM (SELECT 1 FROM tally.webhook_events WHERE status = 'IN_PROCESSING' LIMIT $1) AS w)
           AS in_processing,
       (SELECT count(*) FROM (SELECT 1 FROM tally.webhook_events WHERE status = 'DEAD_LETTER' LIMIT $1) AS w) AS dead_letters,
       (SELECT count(*) FROM (SELECT 1 FROM tally.webhook_body_default LIMIT $1) AS w) AS bodies_without_a_day;

-- name: hold
-- Those that are still under their claims, and stay so until this transaction ends.
SELECT e.number
  FROM unnest($1::text::bigint[], $2::text::integer[]) AS mine (n, claim)
 CROSS JOIN LATERAL (SELECT * FROM tally.webhook_events e
                      WHERE e.number = mine.n AND e.claim_number = mine.claim AND e.status || '' = 'IN_PROCESSING'
                        FOR NO KEY UPDATE) AS e;
