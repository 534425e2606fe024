-- name: newest
-- The newest charge of an order, locked behind the order: as everybody does. since and settled_from are as in release.sql:
-- there may be no attempt of it here at all, and one of a life that was lost.
SELECT l.idempotency_key, l.attempt, l.claim_number, l.provider, l.status, i.instruction, t.name AS tenant, o.id,
       o.status AS order_status, o.reservation_token, o.amount_micros, o.currency, o.created_at, o.expires_at,
       least(o.created_at, i.since, i.first_sent_at, u.known_until) AS since,
       greatest(u.began_at, w.confirmed_at) AS settled_from, clock_timestamp() AS now
  FROM (SELECT * FROM tally.payment_idempotency_log l
         WHERE l.operation_type = 'CHARGE' AND l.order_id = $2 AND l.tenant_id = $1
         ORDER BY l.attempt DESC LIMIT 1) AS l
 CROSS JOIN tally.whereabouts w
 CROSS JOIN LATERAL (SELECT * FROM tally.orders o WHERE o.tenant_id = l.tenant_id AND o.id = l.order_id OFFSET 0) AS o
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t
 CROSS JOIN LATERAL (SELECT * FROM tally.intent i
                      WHERE i.tenant_id = l.tenant_id AND i.key = l.idempotency_key AND i.provider = l.provider
                     OFFSET 0) AS i
 CROSS JOIN LATERAL tally.unread(l.provider) AS u;

-- name: lock_order
SELECT 1 FROM tally.orders WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE;

-- name: resolve
-- Only what nobody knows; a later answer to an earlier claim is evidence only.
UPDATE tally.payment_idempotency_log l
   SET status = $3, payment_intent_id = coalesce($4, l.payment_intent_id), reason = $5, provider_response = $6,
       completed_at = clock_timestamp(), claim_number = l.claim_number + 1
 WHERE l.tenant_id = $1 AND l.idempotency_key = $2 AND l.status || '' = 'PENDING'
RETURNING l.order_id;

-- name: list
-- Charges that nobody answered for, the oldest first. $1: begun longer ago than this.
SELECT t.name AS tenant, l.order_id, l.attempt, l.provider, l.amount_micros, l.currency, l.created_at, l.tries, l.reason,
       l.due_at, l.absent_at, o.status AS order_status
  FROM (SELECT * FROM tally.payment_idempotency_log
         WHERE operation_type = 'CHARGE' AND status = 'PENDING' AND created_at < clock_timestamp() - $1::interval
         ORDER BY created_at LIMIT $2) AS l
 CROSS JOIN LATERAL (SELECT o.status FROM tally.orders o
                      WHERE o.tenant_id = l.tenant_id AND o.id = l.order_id OFFSET 0) AS o
 CROSS JOIN LATERAL (SELECT t.name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t
 ORDER BY l.created_at;
