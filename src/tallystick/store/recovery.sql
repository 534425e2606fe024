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

-- name: known_keys
-- Only what was sent from here explains a movement: a row with its key was created again, or not yet sent, when a life was
-- lost that had sent it.
SELECT i.key FROM tally.tenant t JOIN tally.intent i
    ON i.tenant_id = t.tenant_id AND i.provider = $1 AND i.key BETWEEN $2 AND $3 AND i.attempts > 0;

-- name: installation
SELECT id::text FROM tally.installation;

-- name: sent_or_known
-- What was sent from here, by key; and, without one, what was seen before and is kept.
SELECT m.place, i.key
  FROM unnest($2::integer[], $3::bytea[], $4::bytea[]) AS m (place, first, last), tally.tenant t, tally.intent i
 WHERE i.tenant_id = t.tenant_id AND i.provider = $1 AND i.key BETWEEN m.first AND m.last AND i.attempts > 0
 UNION ALL
SELECT m.place, NULL
  FROM unnest($2::integer[], $5::text[]) AS m (place, id)
  JOIN tally.orphan o ON o.provider = $1 AND o.provider_id = m.id;

-- name: rows_of_key
-- What adopts the movement, or takes it to a person. A charge or refund that is closed does neither.
SELECT s.key FROM tally.tenant t JOIN tally.settlement s
    ON s.tenant_id = t.tenant_id AND s.provider = $1 AND s.key BETWEEN $2 AND $3
UNION ALL
SELECT l.idempotency_key FROM tally.payment_idempotency_log l
 WHERE l.idempotency_key BETWEEN $2 AND $3 AND l.provider = $1 AND l.status <> 'FAILED';

-- name: named_rows
-- Rows that wait to be sent under its key, or by its name: they are asked about.
UPDATE tally.settlement_state st SET ask_first = true
  FROM tally.settlement s
 WHERE (s.key BETWEEN $2 AND $3 OR s.id = $4) AND s.provider = $1
   AND st.tenant_id = s.tenant_id AND st.number = s.number AND st.status IN ('held', 'pending', 'processing')
   AND NOT st.ask_first;

-- name: add_orphan
INSERT INTO tally.orphan
       (provider, reference, provider_id, amount_micros, currency, state, subject, purpose, key_from, key_to, made_at,
        parent, word)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, coalesce($11, (SELECT min(created_at) FROM tally.tenant)), $12, $13)
    ON CONFLICT (provider, provider_id) DO UPDATE
   SET state = excluded.state, key_from = excluded.key_from, key_to = excluded.key_to, made_at = excluded.made_at,
       parent = excluded.parent, word = excluded.word;

-- name: given_back_elsewhere
SELECT g.provider_id FROM tally.given_back_elsewhere($1, $2) AS g WHERE g.amount_micros = $3 AND g.currency = $4 LIMIT 1;

-- name: knows_of_refunds
-- Hardly any database has lost something: then a tick begins without a transaction that writes.
SELECT EXISTS (SELECT FROM tally.orphan o WHERE o.parent IS NOT NULL AND o.purpose = 'refund');

-- name: report_given_back
-- What a lost life gave back of payments that are recorded here: a person must know. Once, whatever is said of it later.
INSERT INTO tally.payment_break (kind, provider, purpose, object_id, word, amount_micros, currency, tenant_id, order_id,
                                 event_number)
SELECT 'refunded_outside', g.provider, g.purpose, g.provider_id, coalesce(g.word, g.state), g.amount_micros, g.currency,
       r.tenant_id, r.order_id, r.event_number
  FROM (SELECT DISTINCT o.provider, o.parent FROM tally.orphan o WHERE o.parent IS NOT NULL AND o.purpose = 'refund') AS of
  JOIN tally.payment_receipt r ON r.payment_intent_id = of.parent AND r.provider = of.provider
 CROSS JOIN LATERAL tally.given_back_elsewhere(of.provider, of.parent) AS g
 WHERE NOT EXISTS (SELECT FROM tally.payment_break b
                    WHERE b.provider = g.provider AND b.object_id = g.provider_id AND b.kind = 'refunded_outside')
    ON CONFLICT (provider, object_id, kind, word) DO NOTHING
RETURNING object_id;

-- name: orphaned
SELECT reference FROM tally.orphan WHERE provider = $1 AND reference = ANY($2::text[]);

-- name: confirm
UPDATE tally.whereabouts w
   SET system = h.system, timeline = h.timeline, database = h.database, started_at = h.started_at,
       intents = h.intents, confirmed_at = clock_timestamp(), known_until = NULL
  FROM tally.whereabouts_now() AS h;
