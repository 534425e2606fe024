-- name: alone
-- Whoever looked here before we distrust it, and lets something be sent by that, has ended: what he logged is seen and marked.
LOCK TABLE tally.whereabouts IN ACCESS EXCLUSIVE MODE;

-- name: goes_on
-- Stopped by an earlier run, in this very place: a copy that was taken meanwhile is another.
SELECT w.database = 0 AND (w.system, w.timeline, w.started_at, w.intents) IS NOT DISTINCT FROM
                          (n.system, n.timeline, n.started_at, n.intents)
       AND (SELECT l.why = 'recover' AND l.began_at <= clock_timestamp()
              FROM tally.life l WHERE l.provider IS NULL ORDER BY l.number DESC LIMIT 1) IS TRUE
  FROM tally.whereabouts w, tally.whereabouts_now() AS n;

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

-- name: ask_again
-- Asked about in an earlier run, without an answer: a person who runs it again does not wait for the pause after that.
UPDATE tally.settlement_state SET due_at = $2
 WHERE provider = $1 AND status = 'processing' AND ask_first AND due_at > $2;

-- name: mark_held
-- Approved later, it would be sent with a key that the lost life may have used: it is asked about then.
UPDATE tally.settlement_state SET ask_first = true
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM tally.settlement_state
                          WHERE provider = $1 AND status = 'held' AND NOT ask_first LIMIT $2 FOR UPDATE))
RETURNING number;

-- name: open
SELECT provider, count(*) AS rows, max(due_at) AS last, clock_timestamp() AS now
  FROM tally.settlement_state WHERE status = 'processing' AND ask_first GROUP BY provider;

-- name: elsewhere
-- Providers that are not configured here: nobody can be asked about their unfinished rows, nor what else they moved.
SELECT provider, sum(rows)::bigint AS rows
  FROM (SELECT provider, count(*) FILTER (WHERE status IN ('pending', 'processing')) AS rows FROM tally.settlement_state
         WHERE provider <> ALL($1::text[]) GROUP BY provider
        UNION ALL
        SELECT provider, count(*) FILTER (WHERE status = 'PENDING') FROM tally.payment_idempotency_log
         WHERE provider <> ALL($1::text[]) GROUP BY provider) AS used
 GROUP BY provider ORDER BY provider;

-- name: last_known
SELECT known_until AS at, clock_timestamp() AS now FROM tally.whereabouts;

-- name: orphaned
SELECT reference FROM tally.orphan WHERE provider = $1 AND reference = ANY($2::text[]);

-- name: confirm
UPDATE tally.whereabouts w
   SET system = h.system, timeline = h.timeline, database = h.database, started_at = h.started_at,
       intents = h.intents, confirmed_at = clock_timestamp(), known_until = NULL
  FROM tally.whereabouts_now() AS h;
