-- name: order_of_payment_key
SELECT k.order_id FROM tally.payment_key k WHERE k.tenant_id = $1 AND k.key = $2;

-- name: payment_keys
SELECT k.key, k.attempt, k.told, k.created_at FROM tally.payment_key k WHERE k.tenant_id = $1 AND k.order_id = $2
 ORDER BY k.created_at, k.key;

-- name: order_key
SELECT o.key, clock_timestamp() AS now FROM tally.operation o WHERE o.tenant_id = $1 AND o.id = $2;

-- name: order_approvals
-- What two persons decide about its payments. A CASE, because other approvals' evidence is whatever a person wrote.
SELECT * FROM tally.approval a
 WHERE a.tenant_id = $1
   AND CASE WHEN a.action IN ('refund_keep', 'refund_confirm', 'refund_failed') THEN a.evidence::jsonb ->> 'order' END = $2
 ORDER BY a.asked_at, a.id;
