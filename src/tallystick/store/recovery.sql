-- name: distrust
-- Nobody sends until `confirm`: also where the database cannot tell by itself that it was restored.
UPDATE tally.whereabouts
   SET database = 0, known_until = coalesce(known_until, (SELECT max(sent_at) FROM tally.attempt));

-- name: mark_pending
-- Claimed without being sent: asked about first, when nothing of the lost life can still be on its way.
UPDATE tally.settlement_state s
   SET status = 'processing', claim_number = s.claim_number + 1, claim_token = $3, claimed_by = $4, ask_first = true,
       processing_since = clock_timestamp(), claimed_at = clock_timestamp(), changed_at = clock_timestamp(),
       due_at = $2
  FROM (SELECT tenant_id, number FROM tally.settlement_state
         WHERE provider = $1 AND status = 'pending' ORDER BY number LIMIT $5 FOR UPDATE) AS free
  JOIN tally.settlement i ON i.tenant_id = free.tenant_id AND i.number = free.number
  JOIN tally.tenant t ON t.tenant_id = free.tenant_id
 WHERE s.tenant_id = free.tenant_id AND s.number = free.number
RETURNING s.tenant_id, t.name AS tenant, s.number, i.id, i.attribution_id, i.squad_id, i.currency, i.net_micros,
          i.amount_micros, s.provider, i.destination, i.generation, i.key, i.created_at, s.claim_number, s.tries,
          s.ask_first, clock_timestamp() AS now;

-- name: mark_processing
-- A new claim number: a worker of before can no longer write.
UPDATE tally.settlement_state s
   SET ask_first = true, due_at = $2, claim_number = s.claim_number + 1, claim_token = $3, claimed_by = $4,
       claimed_at = clock_timestamp()
  FROM (SELECT tenant_id, number FROM tally.settlement_state
         WHERE provider = $1 AND status = 'processing' AND NOT ask_first ORDER BY due_at LIMIT $5 FOR UPDATE) AS open
  JOIN tally.settlement i ON i.tenant_id = open.tenant_id AND i.number = open.number
  JOIN tally.tenant t ON t.tenant_id = open.tenant_id
 WHERE s.tenant_id = open.tenant_id AND s.number = open.number
RETURNING s.tenant_id, t.name AS tenant, s.number, i.id, i.attribution_id, i.squad_id, i.currency, i.net_micros,
          i.amount_micros, s.provider, i.destination, i.generation, i.key, i.created_at, s.claim_number, s.tries,
          s.ask_first, clock_timestamp() AS now;

-- name: open
SELECT provider, count(*) AS rows, max(due_at) AS last, clock_timestamp() AS now
  FROM tally.settlement_state WHERE status = 'processing' AND ask_first GROUP BY provider;

-- name: elsewhere
-- Providers that are not configured here: nobody can be asked about their unfinished rows, nor what else they paid.
SELECT provider, count(*) FILTER (WHERE status IN ('pending', 'processing')) AS rows FROM tally.settlement_state
 WHERE provider <> ALL($1::text[]) GROUP BY provider ORDER BY provider;

-- name: last_known
SELECT known_until AS at, clock_timestamp() AS now FROM tally.whereabouts;

-- name: known_keys
SELECT i.key FROM tally.tenant t JOIN tally.intent i
    ON i.tenant_id = t.tenant_id AND i.provider = $1 AND i.key BETWEEN $2 AND $3
 UNION
SELECT s.key FROM tally.tenant t JOIN tally.settlement s
    ON s.tenant_id = t.tenant_id AND s.provider = $1 AND s.key BETWEEN $2 AND $3;

-- name: add_orphan
INSERT INTO tally.orphan (provider, reference, provider_id, amount_micros, currency, state, subject)
VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (provider, provider_id) DO UPDATE SET state = excluded.state;

-- name: orphaned
SELECT reference FROM tally.orphan WHERE provider = $1 AND reference = ANY($2::text[]);

-- name: confirm
UPDATE tally.whereabouts w
   SET system = h.system, timeline = h.timeline, database = h.database, confirmed_at = clock_timestamp(),
       known_until = NULL
  FROM tally.here() AS h;
