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
