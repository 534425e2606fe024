-- LATERAL with OFFSET 0, or with a lock, is a probe of an index for each row, as in payment.sql.

-- name: log_refunds
-- No ON CONFLICT: a second live refund of a payment is a race that the order's lock excludes, or a bug. The trigger computes
-- keys again, compares with the receipt and asks for the intents, which the same transaction has just made.
INSERT INTO tally.payment_idempotency_log
       (tenant_id, idempotency_key, order_id, operation_type, attempt, amount_micros, currency, provider, payment_intent_id,
        part, due_at, created_at)
SELECT t, k, o, 'REFUND', generation, amount, currency, provider, payment, part,
       -- What is not sent before the provider's books were asked is the sweeper's from then on.
       CASE WHEN asked_from IS NULL THEN clock_timestamp() + $9::interval
            ELSE greatest(asked_from, clock_timestamp()) END, clock_timestamp()
  FROM unnest($1::integer[], $2::bytea[], $3::uuid[], $4::integer[], $5::bigint[], $6::text[], $7::text[], $8::text[],
              $10::timestamptz[], $11::bytea[])
       AS fresh (t, k, o, generation, amount, currency, provider, payment, asked_from, part);

-- name: in_doubt
-- Parts that a lost life may have given back under another key of the caller's, which nobody here knows: the books are
-- unread, and more was lost than a promotion loses ($5); or they show so much of that payment, and nothing here asks for it.
-- Where they cannot be read ($6) nobody would ever know.
SELECT g.place
  FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $6::boolean[]) WITH ORDINALITY
       AS g (provider, parent, amount, cur, is_listed, place)
 CROSS JOIN LATERAL tally.unread(g.provider) AS u
 WHERE (g.is_listed AND u.life IS NOT NULL
        AND u.began_at - u.known_until NOT BETWEEN -$5::interval AND $5::interval)
    OR EXISTS (SELECT FROM tally.given_back_elsewhere(g.provider, g.parent) AS o
                WHERE o.amount_micros = g.amount AND o.currency = g.cur);

-- name: lock
-- Given sorted, and locked in that order, before the attempts: as everybody does.
SELECT l.tenant_id, l.idempotency_key, l.order_id, l.provider, l.payment_intent_id, l.amount_micros, l.currency,
       l.claim_number, l.status, l.refund_id, l.reason, l.part,
       -- No event waits for a part: somebody asked for it.
       CASE WHEN l.part IS NULL THEN r.event_number END AS event_number
  FROM unnest($1::integer[], $2::bytea[]) AS given (t, k)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.idempotency_key = given.k AND l.tenant_id = given.t FOR NO KEY UPDATE) AS l
  LEFT JOIN LATERAL (SELECT r.event_number FROM tally.payment_receipt r
                      WHERE r.order_id = l.order_id AND r.tenant_id = l.tenant_id
                        AND r.payment_intent_id = l.payment_intent_id AND r.provider = l.provider OFFSET 0) AS r ON true;

-- name: record
-- Locked before, and compared with the claim. One that was told by the provider itself ends the claim of whoever is at it.
UPDATE tally.payment_idempotency_log l
   SET status = g.status, refund_id = coalesce(g.refund, l.refund_id), reason = g.reason,
       -- Whoever asked for a part is told so, for ever; one that failed after it was given is another story.
       refusal = CASE WHEN l.part IS NOT NULL AND l.status = 'PENDING' AND g.status = 'FAILED'
                      THEN convert_to(g.reason, 'UTF8') ELSE l.refusal END,
       due_at = coalesce(g.due_at, l.due_at), tries = coalesce(g.tries, l.tries),
       provider_response = coalesce(g.response, l.provider_response),
       claim_number = l.claim_number + g.ends_claim::integer, ask_first = g.ask_first,
       completed_at = CASE g.status WHEN 'PENDING' THEN NULL ELSE clock_timestamp() END
  FROM unnest($1::integer[], $2::bytea[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::integer[],
              $8::bytea[], $9::boolean[], $10::boolean[])
       AS g (t, k, status, refund, reason, due_at, tries, response, ends_claim, ask_first)
 WHERE l.idempotency_key = g.k AND l.tenant_id = g.t;

-- name: extend
-- Sent again under the claim it has: nobody else takes it meanwhile. Those that are still under it.
UPDATE tally.payment_idempotency_log l
   SET due_at = clock_timestamp() + $4::interval
  FROM unnest($1::integer[], $2::bytea[], $3::integer[]) AS given (t, k, claim)
 WHERE l.idempotency_key = given.k AND l.tenant_id = given.t AND l.claim_number = given.claim
   AND l.status || '' = 'PENDING'
RETURNING l.idempotency_key;

-- name: claim_due
-- What is owed and due, by the database's clock. SKIP LOCKED: two sweepers never share one. $4: only what must be asked first.
-- $5: what was due then, so that a run over all of it ends.
WITH claimed AS (
    UPDATE tally.payment_idempotency_log l
       SET claim_number = l.claim_number + 1, due_at = clock_timestamp() + $3::interval
     WHERE l.ctid = ANY (ARRAY(SELECT ctid FROM tally.payment_idempotency_log
                                WHERE operation_type = 'REFUND' AND status = 'PENDING' AND due_at <= statement_timestamp()
                                  AND due_at <= coalesce($5::timestamptz, 'infinity') AND (ask_first OR NOT $4)
                                  AND provider = ANY ($2::text[])
                                ORDER BY due_at LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING l.*
)
SELECT l.tenant_id, t.name AS tenant, l.idempotency_key, l.order_id, l.attempt, l.provider, l.payment_intent_id,
       l.amount_micros, l.currency, l.status, l.refund_id, l.reason, l.claim_number, l.tries, l.due_at, l.part,
       l.ask_first, i.instruction, least(f.since, i.since, (tally.unread(l.provider)).known_until) AS since, clock_timestamp() AS now
  FROM claimed l
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t
 CROSS JOIN LATERAL (SELECT * FROM tally.intent i
                      WHERE i.tenant_id = l.tenant_id AND i.key = l.idempotency_key AND i.provider = l.provider
                     OFFSET 0) AS i
 CROSS JOIN LATERAL (SELECT min(f.created_at) AS since FROM tally.payment_idempotency_log f
                      WHERE f.operation_type = 'REFUND' AND f.order_id = l.order_id AND f.tenant_id = l.tenant_id
                        AND f.payment_intent_id = l.payment_intent_id AND f.provider = l.provider) AS f;

-- name: by_id
SELECT g.place, l.tenant_id, t.name AS tenant, l.idempotency_key, l.order_id, l.status, l.refund_id
  FROM unnest($1::text::text[], $2::text::text[]) WITH ORDINALITY AS g (provider, id, place)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.refund_id = g.id AND l.provider = g.provider OFFSET 0) AS l
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t;

-- name: by_key
SELECT g.place, l.tenant_id, t.name AS tenant, l.idempotency_key, l.order_id, l.status, l.refund_id
  FROM unnest($1::text[], $2::bytea[], $3::bytea[]) WITH ORDINALITY AS g (provider, low, high, place)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.idempotency_key BETWEEN g.low AND g.high AND l.provider = g.provider
                        AND l.operation_type || '' = 'REFUND' OFFSET 0) AS l
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t;

-- name: by_payment
-- Where a refund tells no reference: the one live refund of the payment, of that very amount. Where there are two, nobody can
-- tell which is meant. Written so (operation_type || '') that the index of payments finds them.
SELECT g.place, l.tenant_id, t.name AS tenant, l.idempotency_key, l.order_id, l.status, l.refund_id
  FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) WITH ORDINALITY AS g (provider, parent, amount, cur, place)
 CROSS JOIN LATERAL (SELECT l.*, count(*) OVER () AS alike FROM tally.payment_idempotency_log l
                      WHERE l.payment_intent_id = g.parent AND l.provider = g.provider AND l.operation_type || '' = 'REFUND'
                        AND l.status || '' = 'PENDING' AND l.refund_id IS NULL
                        AND l.amount_micros = g.amount AND l.currency = g.cur OFFSET 0) AS l
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t
 WHERE l.alike = 1;

-- name: take_events
-- Events that wait for these refunds. One that another worker has in hand is left to him: he finds the refund completed.
UPDATE tally.webhook_events e
   SET status = 'IN_PROCESSING', claim_number = e.claim_number + 1, claimed_by = 'financial sweeper',
       processing_until = clock_timestamp() + interval '1 minute'
 WHERE e.number = ANY (ARRAY(SELECT w.number FROM tally.webhook_events w
                              WHERE w.number = ANY ($1::bigint[]) AND w.status || '' = 'UNPROCESSED'
                              ORDER BY w.number FOR UPDATE SKIP LOCKED))
RETURNING e.number;

-- name: compensate_events
UPDATE tally.webhook_events e
   SET status = 'PROCESSED_COMPENSATED', processing_until = NULL, processed_at = clock_timestamp(), reason = NULL
 WHERE e.number = ANY ($1::bigint[]) AND e.status || '' = 'IN_PROCESSING';

-- name: explain_breaks
-- What was reported because nothing here explained it, and now something does.
UPDATE tally.payment_break b
   SET resolved_at = clock_timestamp(), resolution = 'explained by a refund of ours', resolved_by = 'saga'
  FROM unnest($1::text[], $2::text[]) AS given (provider, id)
 WHERE b.provider = given.provider AND b.object_id = given.id AND b.kind IN ('missing_here', 'refunded_outside')
   AND b.resolved_at IS NULL;

-- name: let_go
-- A person has looked where nobody could be asked. What waits for him alone is the sweeper's again: under its own key, and
-- while the provider knows that.
UPDATE tally.payment_idempotency_log l
   SET ask_first = false, reason = NULL, due_at = clock_timestamp(), claim_number = l.claim_number + 1
 WHERE l.tenant_id = $1 AND l.idempotency_key = $2 AND l.operation_type || '' = 'REFUND'
   AND l.status || '' = 'PENDING' AND l.ask_first AND l.reason = $3
RETURNING l.idempotency_key;

-- name: wake
-- The provider answers again: what waited for it need not wait out its pause. What was never answered without an end is
-- not waiting: it is being sent for the first time, and to claim it would only take it out of its sender's hand.
UPDATE tally.payment_idempotency_log l SET due_at = clock_timestamp()
 WHERE l.ctid = ANY (ARRAY(SELECT ctid FROM tally.payment_idempotency_log
                            WHERE operation_type = 'REFUND' AND status = 'PENDING' AND provider = $1
                              AND due_at > clock_timestamp() + interval '1 second' AND reason IS NULL AND tries > 0
                            LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED));

-- name: of_order
SELECT l.idempotency_key, l.attempt, l.provider, l.payment_intent_id, l.refund_id, l.amount_micros, l.currency, l.status,
       l.reason, l.provider_response, l.tries, l.due_at, l.created_at, l.completed_at, coalesce(q.reason, r.reason) AS why,
       coalesce(q.created_at, r.received_at) AS received_at, q.key AS asked_under, coalesce(q.restock, false) AS restock,
       l.attempt = max(l.attempt) OVER (PARTITION BY l.payment_intent_id, l.provider, l.part) AS is_newest
  FROM tally.payment_idempotency_log l
  LEFT JOIN tally.refund_request q ON q.order_id = l.order_id AND q.tenant_id = l.tenant_id AND q.part = l.part
  JOIN tally.payment_receipt r ON r.order_id = l.order_id AND r.tenant_id = l.tenant_id
                              AND r.payment_intent_id = l.payment_intent_id AND r.provider = l.provider
 WHERE l.tenant_id = $1 AND l.order_id = $2 AND l.operation_type = 'REFUND'
 ORDER BY l.created_at, l.attempt;

-- name: receipts_of_order
SELECT provider, payment_intent_id, amount_micros, currency, fate, reason, event_number, received_at, recorded_at
  FROM tally.payment_receipt WHERE tenant_id = $1 AND order_id = $2 ORDER BY recorded_at;

-- name: lock_receipt
SELECT r.*, t.name AS tenant, clock_timestamp() AS now
  FROM tally.payment_receipt r JOIN tally.tenant t USING (tenant_id)
 WHERE r.tenant_id = $1 AND r.order_id = $2 AND r.payment_intent_id = $3
   FOR NO KEY UPDATE OF r;

-- name: receipt
-- Not locked: whoever decides about a part has that part's row, and whoever fails it takes the receipt's after it.
SELECT r.*, t.name AS tenant, clock_timestamp() AS now
  FROM tally.payment_receipt r JOIN tally.tenant t USING (tenant_id)
 WHERE r.tenant_id = $1 AND r.order_id = $2 AND r.payment_intent_id = $3;

-- name: newest
-- Of the payment, or of a part of it; locked, so that nobody decides it meanwhile.
SELECT l.idempotency_key, l.attempt, l.status, l.reason, l.amount_micros,
       (SELECT min(f.created_at) FROM tally.payment_idempotency_log f
         WHERE f.operation_type = 'REFUND' AND f.order_id = l.order_id AND f.tenant_id = l.tenant_id
           AND f.payment_intent_id = l.payment_intent_id AND f.provider = l.provider
           AND f.part IS NOT DISTINCT FROM l.part) AS since
  FROM tally.payment_idempotency_log l
 WHERE l.operation_type = 'REFUND' AND l.tenant_id = $1 AND l.payment_intent_id = $2 AND l.provider = $3
   AND l.part IS NOT DISTINCT FROM $4
 ORDER BY l.attempt DESC LIMIT 1
   FOR NO KEY UPDATE OF l;

-- name: standing
-- As `claim_due` shows it, without a claim: whoever only asks takes it out of nobody's hand.
SELECT l.tenant_id, t.name AS tenant, l.idempotency_key, l.order_id, l.attempt, l.provider, l.payment_intent_id,
       l.amount_micros, l.currency, l.status, l.refund_id, l.reason, l.claim_number, l.tries, l.due_at, l.part,
       l.ask_first, i.instruction, least(f.since, i.since, (tally.unread(l.provider)).known_until) AS since, clock_timestamp() AS now
  FROM tally.payment_idempotency_log l
  JOIN tally.tenant t ON t.tenant_id = l.tenant_id
  JOIN tally.intent i ON i.tenant_id = l.tenant_id AND i.key = l.idempotency_key AND i.provider = l.provider
 CROSS JOIN LATERAL (SELECT min(f.created_at) AS since FROM tally.payment_idempotency_log f
                      WHERE f.operation_type = 'REFUND' AND f.order_id = l.order_id AND f.tenant_id = l.tenant_id
                        AND f.payment_intent_id = l.payment_intent_id AND f.provider = l.provider) AS f
 WHERE l.tenant_id = $1 AND l.idempotency_key = $2;

-- name: due_now
-- A person has removed what it waited for: it is the next sweep's, under the key it has.
UPDATE tally.payment_idempotency_log l SET due_at = clock_timestamp()
 WHERE l.tenant_id = $1 AND l.idempotency_key = $2 AND l.status || '' = 'PENDING' AND l.due_at > clock_timestamp();

-- name: waiting
-- What only a person can go on with, of every tenant, the oldest first. What has failed is among the breaks.
SELECT t.name AS tenant, l.order_id, l.provider, l.payment_intent_id, l.amount_micros, l.currency, l.status, l.reason,
       l.tries, l.created_at, q.key AS part
  FROM tally.payment_idempotency_log l
  JOIN tally.tenant t ON t.tenant_id = l.tenant_id
  LEFT JOIN tally.refund_request q ON q.order_id = l.order_id AND q.tenant_id = l.tenant_id AND q.part = l.part
 WHERE l.operation_type = 'REFUND' AND l.status = 'PENDING' AND l.reason IS NOT NULL
 ORDER BY l.created_at, l.idempotency_key LIMIT $1;

-- name: decide_receipt
UPDATE tally.payment_receipt SET fate = $5
 WHERE tenant_id = $1 AND order_id = $2 AND payment_intent_id = $3 AND provider = $4;

-- name: figures
SELECT (SELECT count(*) FROM (SELECT 1 FROM tally.payment_idempotency_log
                               WHERE operation_type = 'REFUND' AND status = 'PENDING' LIMIT $1) AS p) AS pending,
       (SELECT greatest(coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0), 0)::float8
          FROM tally.payment_idempotency_log WHERE operation_type = 'REFUND' AND status = 'PENDING') AS oldest_seconds;

-- name: times
SELECT le, sum(count)::bigint AS count, sum(seconds)::float8 AS seconds FROM tally.compensation_time GROUP BY le ORDER BY le;

-- name: quantiles
-- Over the newest so many of the last day.
SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY took) AS quantiles
  FROM (SELECT extract(epoch FROM l.completed_at - r.received_at)::float8 AS took
          FROM (SELECT * FROM tally.payment_idempotency_log
                 WHERE operation_type = 'REFUND' AND status = 'COMPLETED' AND part IS NULL
                   AND completed_at > clock_timestamp() - interval '1 day'
                 ORDER BY completed_at DESC LIMIT $1) AS l
         CROSS JOIN LATERAL (SELECT r.received_at FROM tally.payment_receipt r
                              WHERE r.order_id = l.order_id AND r.tenant_id = l.tenant_id
                                AND r.payment_intent_id = l.payment_intent_id AND r.provider = l.provider OFFSET 0) AS r
       ) AS done;
