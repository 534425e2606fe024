-- LATERAL with OFFSET 0 is a probe of the primary key for each row, whatever the planner thinks of a table that was empty
-- when it planned: a plan is made once for each connection.

-- name: claim
-- Pass 1, one statement. SKIP LOCKED: two ticks never share a row, and none waits for the other. The partial index of
-- pending rows is all it looks at; $2 lets a long tick go on where it was instead of passing over what it claimed.
-- By place (ctid), which a locked row keeps: by number a plan made for any LIMIT would join all of the pending. A row
-- that somebody changed meanwhile is not found at its old place, and waits for the next claim.
WITH claimed AS (
    UPDATE tally.settlement_state s
       SET status = 'processing', claim_number = s.claim_number + 1, claim_token = $5, claimed_by = $6,
           processing_since = clock_timestamp(), claimed_at = clock_timestamp(), changed_at = clock_timestamp(),
           due_at = clock_timestamp() + $4::interval
     WHERE s.ctid = ANY (ARRAY(SELECT ctid FROM tally.settlement_state
                                WHERE provider = $1 AND status = 'pending' AND number > $2
                                ORDER BY number LIMIT $3 FOR UPDATE SKIP LOCKED))
    RETURNING s.tenant_id, s.number, s.provider, s.claim_number, s.tries, s.ask_first
)
SELECT s.tenant_id, t.name AS tenant, s.number, i.id, i.attribution_id, i.squad_id, i.currency, i.net_micros,
       i.amount_micros, s.provider, i.destination, i.generation, i.key, i.created_at, s.claim_number, s.tries,
       s.ask_first, clock_timestamp() AS now
  FROM claimed s
 CROSS JOIN LATERAL (SELECT * FROM tally.settlement i
                      WHERE i.tenant_id = s.tenant_id AND i.number = s.number OFFSET 0) AS i
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = s.tenant_id OFFSET 0) AS t;

-- name: reclaim
-- Pass 2: what was claimed and is overdue, by the database's clock. $6: only what must be asked first.
-- $7: what was due then; what becomes due while the pass runs is for the next, so that a pass ends.
WITH claimed AS (
    UPDATE tally.settlement_state s
       SET claim_number = s.claim_number + 1, claim_token = $4, claimed_by = $5, claimed_at = clock_timestamp(),
           changed_at = clock_timestamp(), due_at = clock_timestamp() + $3::interval
     WHERE s.ctid = ANY (ARRAY(SELECT ctid FROM tally.settlement_state
                                WHERE provider = $1 AND status = 'processing' AND due_at <= statement_timestamp()
                                  AND due_at <= coalesce($7::timestamptz, 'infinity') AND (ask_first OR NOT $6)
                                ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING s.tenant_id, s.number, s.provider, s.claim_number, s.tries, s.ask_first
)
SELECT s.tenant_id, t.name AS tenant, s.number, i.id, i.attribution_id, i.squad_id, i.currency, i.net_micros,
       i.amount_micros, s.provider, i.destination, i.generation, i.key, i.created_at, s.claim_number, s.tries,
       s.ask_first, clock_timestamp() AS now
  FROM claimed s
 CROSS JOIN LATERAL (SELECT * FROM tally.settlement i
                      WHERE i.tenant_id = s.tenant_id AND i.number = s.number OFFSET 0) AS i
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = s.tenant_id OFFSET 0) AS t;

-- name: born
SELECT i.tenant_id, i.key, i.since
  FROM unnest($1::integer[], $2::bytea[]) AS wanted (t, k)
 CROSS JOIN LATERAL (SELECT * FROM tally.intent i
                      WHERE i.tenant_id = wanted.t AND i.key = wanted.k AND i.provider = $3 AND i.since IS NOT NULL
                     OFFSET 0) AS i;

-- name: made_before
-- What a lost life of this database made at the provider for these, and is not known to have failed.
SELECT o.subject, o.reference, o.provider_id
  FROM tally.orphan o WHERE o.subject = ANY($1::uuid[]) AND o.state <> 'failed';

-- name: fence
-- Which rows are still under these claims, locked in one order.
SELECT s.tenant_id, s.number, s.status, s.transfer_id, s.reason
  FROM tally.settlement_state s
  JOIN unnest($1::integer[], $2::bigint[], $3::integer[]) AS mine (t, n, claim)
    ON s.tenant_id = mine.t AND s.number = mine.n AND s.claim_number = mine.claim
 ORDER BY s.tenant_id, s.number
   FOR NO KEY UPDATE OF s;

-- name: extend
-- The row is sent again now: the next takeover counts from here.
UPDATE tally.settlement_state s SET due_at = clock_timestamp() + $4::interval, tries = mine.tries
  FROM unnest($1::integer[], $2::bigint[], $3::integer[], $5::integer[]) AS mine (t, n, claim, tries)
 WHERE s.tenant_id = mine.t AND s.number = mine.n AND s.claim_number = mine.claim AND s.status || '' = 'processing';

-- name: record
-- Matching the claim number fences a worker that was paused past its lease. The row is found by its primary key; written
-- plainly, the condition on status would tempt the planner to walk the index of all processing rows.
UPDATE tally.settlement_state s
   SET status = given.status, due_at = coalesce(given.due_at, s.due_at), tries = given.tries,
       transfer_id = coalesce(given.transfer_id, s.transfer_id), reason = given.reason, result_id = given.result,
       ask_first = given.ask_first, changed_at = clock_timestamp()
  FROM unnest($1::integer[], $2::bigint[], $3::integer[], $4::text[], $5::timestamptz[], $6::integer[], $7::text[],
              $8::text[], $9::uuid[], $10::boolean[])
       AS given (t, n, claim, status, due_at, tries, transfer_id, reason, result, ask_first)
 WHERE s.tenant_id = given.t AND s.number = given.n AND s.claim_number = given.claim AND s.status || '' = 'processing';

-- name: add_events
INSERT INTO tally.settlement_event (tenant_id, settlement, what, by, body)
SELECT * FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::text[], $5::bytea[]);

-- name: count
INSERT INTO tally.settlement_count (slot, name, value)
SELECT $1, name, value FROM unnest($2::text[], $3::bigint[]) AS given (name, value) ORDER BY name
    ON CONFLICT (slot, name) DO UPDATE SET value = tally.settlement_count.value + excluded.value;

-- name: policies_since
-- A currency's own row stands for every other: either may have been the one in force.
SELECT asked.n AS number, coalesce(max(p.changed_at), t.created_at) AS since
  FROM unnest($1::integer[], $2::bigint[], $3::text[]) AS asked (t, n, currency)
  JOIN tally.tenant t ON t.tenant_id = asked.t
  LEFT JOIN tally.settlement_policy p ON p.tenant_id = asked.t AND p.currency IN (asked.currency, '')
 GROUP BY asked.n, t.created_at;
