-- LATERAL with OFFSET 0, or with a lock, is a probe of an index for each row, whatever the planner thinks of a table that
-- was empty when it planned: a plan is made once for each connection.

-- name: lock_orders
-- Given sorted, and locked in that order. Whoever wants to charge an order, cancel or sweep it, or call it paid, passes
-- here one after the other; the clock is read after each lock.
SELECT o.tenant_id, t.name AS tenant, o.id, o.status, o.reservation_token, o.amount_micros, o.currency, o.expires_at,
       clock_timestamp() AS now
  FROM unnest($1::text::integer[], $2::uuid[]) AS wanted (t, i)
 CROSS JOIN LATERAL (SELECT * FROM tally.orders o WHERE o.tenant_id = wanted.t AND o.id = wanted.i
                        FOR NO KEY UPDATE) AS o
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = o.tenant_id OFFSET 0) AS t;

-- name: newest
-- In a statement of its own, after the locks: it must see what the one before us committed.
SELECT l.tenant_id, l.order_id, l.idempotency_key, l.attempt, l.provider, l.status, l.payment_intent_id, l.reason,
       l.claim_number, l.tries, l.due_at, i.instruction, i.first_sent_at, a.number, a.token, a.not_after
  FROM unnest($1::text::integer[], $2::uuid[]) AS wanted (t, i)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.operation_type = 'CHARGE' AND l.order_id = wanted.i AND l.tenant_id = wanted.t
                      ORDER BY l.attempt DESC LIMIT 1) AS l
  LEFT JOIN LATERAL (SELECT * FROM tally.intent i
                      WHERE i.tenant_id = l.tenant_id AND i.key = l.idempotency_key AND i.provider = l.provider
                     OFFSET 0) AS i ON true
  LEFT JOIN LATERAL (SELECT * FROM tally.attempt a
                      WHERE a.tenant_id = i.tenant_id AND a.key = i.key AND a.provider = i.provider
                        AND a.number = i.attempts OFFSET 0) AS a ON true;

-- name: log_charges
-- No ON CONFLICT: a second live charge of an order is a race that the order's lock excludes, or a bug. The trigger
-- computes keys again and asks for the intents, which the same transaction has just made.
INSERT INTO tally.payment_idempotency_log
       (tenant_id, idempotency_key, order_id, operation_type, attempt, amount_micros, currency, provider, due_at, created_at)
SELECT t, k, o, 'CHARGE', attempt, amount, currency, provider, at + $9::interval, at
  FROM unnest($1::text::integer[], $2::bytea[], $3::uuid[], $4::text::integer[], $5::text::bigint[], $6::text::text[],
              $7::text::text[], $8::timestamptz[])
       AS fresh (t, k, o, attempt, amount, currency, provider, at);

-- name: claim_again
-- A pending charge that somebody asks about, or sends again, now. Later answers to earlier claims are evidence only.
UPDATE tally.payment_idempotency_log l
   SET claim_number = given.claim, due_at = clock_timestamp() + $5::interval, tries = given.tries,
       provider_response = coalesce(given.response, l.provider_response)
  FROM unnest($1::integer[], $2::bytea[], $3::integer[], $4::integer[], $6::bytea[])
       AS given (t, k, claim, tries, response)
 WHERE l.idempotency_key = given.k AND l.tenant_id = given.t AND l.status || '' = 'PENDING';

-- name: fence
-- Given sorted, and locked in that order, before the attempts: as everybody does.
SELECT l.tenant_id, l.idempotency_key, l.claim_number, l.status, l.payment_intent_id, l.reason
  FROM unnest($1::text::integer[], $2::bytea[]) AS given (t, k)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.idempotency_key = given.k AND l.tenant_id = given.t FOR NO KEY UPDATE) AS l;

-- name: record
-- Matching the claim number fences whoever lost it.
UPDATE tally.payment_idempotency_log l
   SET status = g.status, payment_intent_id = coalesce(g.payment, l.payment_intent_id), reason = g.reason,
       due_at = coalesce(g.due_at, l.due_at), tries = g.tries,
       provider_response = coalesce(g.response, l.provider_response),
       completed_at = CASE g.status WHEN 'PENDING' THEN NULL ELSE clock_timestamp() END
  FROM unnest($1::text::integer[], $2::bytea[], $3::text::integer[], $4::text::text[], $5::text::text[],
              $6::text::text[], $7::timestamptz[], $8::text::integer[], $9::bytea[])
       AS g (t, k, claim, status, payment, reason, due_at, tries, response)
 WHERE l.idempotency_key = g.k AND l.tenant_id = g.t AND l.claim_number = g.claim;

-- name: claim_due
-- What nobody has finished, by the database's clock. SKIP LOCKED: two workers never share a row. By place (ctid), which
-- a locked row keeps.
WITH claimed AS (
    UPDATE tally.payment_idempotency_log l
       SET claim_number = l.claim_number + 1, due_at = clock_timestamp() + $3::interval
     WHERE l.ctid = ANY (ARRAY(SELECT ctid FROM tally.payment_idempotency_log
                                WHERE operation_type = 'CHARGE' AND status = 'PENDING' AND due_at <= statement_timestamp()
                                  AND provider = ANY ($2::text[])
                                ORDER BY due_at LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING l.*
)
SELECT l.tenant_id, l.order_id, l.idempotency_key, l.attempt, l.provider, l.status, l.payment_intent_id, l.reason,
       l.claim_number, l.tries, clock_timestamp() AS due_at, i.instruction, t.name AS tenant, o.id,
       o.status AS order_status, o.reservation_token, o.amount_micros, o.currency, o.expires_at,
       clock_timestamp() AS now
  FROM claimed l
 CROSS JOIN LATERAL (SELECT * FROM tally.orders o WHERE o.tenant_id = l.tenant_id AND o.id = l.order_id OFFSET 0) AS o
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t
 CROSS JOIN LATERAL (SELECT * FROM tally.intent i
                      WHERE i.tenant_id = l.tenant_id AND i.key = l.idempotency_key AND i.provider = l.provider
                     OFFSET 0) AS i;

-- name: of_order
SELECT l.tenant_id, l.order_id, l.idempotency_key, l.operation_type, l.attempt, l.amount_micros, l.currency, l.provider,
       l.payment_intent_id, l.refund_id, l.status, l.reason, l.provider_response, l.claim_number, l.tries, l.due_at,
       l.created_at, l.completed_at
  FROM tally.payment_idempotency_log l
 WHERE l.tenant_id = $1 AND l.order_id = $2 AND l.operation_type = 'CHARGE'
 ORDER BY l.attempt;

-- name: order_with_payment
SELECT o.*, l.status AS payment_status, l.payment_intent_id, l.attempt, l.reason, r.status AS refund_status,
       r.payment_intent_id AS refunded_payment, r.refund_id, r.amount_micros AS refund_micros,
       r.currency AS refund_currency, coalesce(r.reason, w.reason) AS refund_reason, r.created_at AS refund_created_at,
       r.completed_at AS refund_completed_at
  FROM unnest($2::uuid[]) AS wanted (i)
 CROSS JOIN LATERAL (SELECT * FROM tally.orders o WHERE o.tenant_id = $1 AND o.id = wanted.i OFFSET 0) AS o
  LEFT JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.operation_type = 'CHARGE' AND l.order_id = o.id AND l.tenant_id = o.tenant_id
                      ORDER BY l.attempt DESC LIMIT 1) AS l ON true
  -- In the order of the index that is meant: without it another is as good while there are no refunds, and bad later.
  LEFT JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log r
                      WHERE r.operation_type = 'REFUND' AND r.order_id = o.id AND r.tenant_id = o.tenant_id
                      ORDER BY r.created_at DESC, r.attempt DESC LIMIT 1) AS r ON true
  LEFT JOIN LATERAL (SELECT w.reason FROM tally.payment_receipt w
                      WHERE w.order_id = r.order_id AND w.tenant_id = r.tenant_id
                        AND w.payment_intent_id = r.payment_intent_id AND w.provider = r.provider
                     -- Else all receipts of the tenant are read and compared, planned while there were none.
                     OFFSET 0) AS w ON true;

-- name: order_of_payment
SELECT l.order_id FROM tally.payment_idempotency_log l
 WHERE l.payment_intent_id = $2 AND l.tenant_id = $1
 ORDER BY l.created_at LIMIT 1;

-- name: waiting
-- How many charges are pending past their time, up to a bound, and how long the oldest: 0 if none is.
SELECT (SELECT count(*) FROM (SELECT 1 FROM tally.payment_idempotency_log
                               WHERE operation_type = 'CHARGE' AND status = 'PENDING' LIMIT $1) AS p) AS pending,
       (SELECT greatest(coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0), 0)::float8
          FROM tally.payment_idempotency_log WHERE operation_type = 'CHARGE' AND status = 'PENDING') AS oldest_seconds;
