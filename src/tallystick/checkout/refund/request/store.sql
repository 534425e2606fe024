-- name: lock_order
-- Whoever charges, cancels, pays or gives back an order passes here, one after the other.
SELECT o.status, o.is_backordered, o.amount_micros, o.currency, o.created_at FROM tally.orders o
 WHERE o.tenant_id = $1 AND o.id = $2 FOR NO KEY UPDATE;

-- name: lock_payment
-- In a statement of its own, after the order's lock: what the one before us asked for counts. The CHECK of the same row holds
-- whatever is decided by it.
SELECT r.provider, r.payment_intent_id, r.amount_micros, r.currency, r.refunding_micros, r.received_at,
       EXISTS (SELECT 1 FROM tally.refund_request q
                WHERE q.order_id = r.order_id AND q.tenant_id = r.tenant_id AND q.restock) AS is_restocked
  FROM tally.payment_receipt r WHERE r.order_id = $2 AND r.tenant_id = $1 AND r.fate = 'PAID'
   FOR NO KEY UPDATE OF r;

-- name: find
SELECT q.order_id, q.asked_micros, q.amount_micros, q.currency, q.reason, q.restock, q.provider, q.payment_intent_id,
       q.created_at, l.status, l.refund_id, coalesce(convert_from(l.refusal, 'UTF8'), l.reason) AS failure,
       l.status = 'COMPLETED' OR (l.status = 'FAILED' AND l.refusal IS NULL AND l.refund_id IS NOT NULL) AS was_given
  FROM tally.refund_request q
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.operation_type = 'REFUND' AND l.order_id = q.order_id AND l.tenant_id = q.tenant_id
                        AND l.part = q.part
                      ORDER BY l.created_at DESC, l.attempt DESC LIMIT 1) AS l
 WHERE q.tenant_id = $1 AND q.key = $2;

-- name: add
INSERT INTO tally.refund_request (tenant_id, key, order_id, part, provider, payment_intent_id, asked_micros, amount_micros,
                                  currency, reason, restock)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);
