-- name: events
-- With what is left of the evidence: its length, and whether its day was detached on purpose.
SELECT e.*, octet_length(b.body) AS body_bytes, d.day IS NOT NULL AS is_detached
  FROM unnest($1::bigint[]) AS wanted (n)
 CROSS JOIN LATERAL (SELECT * FROM tally.webhook_events e WHERE e.number = wanted.n OFFSET 0) AS e
  LEFT JOIN LATERAL (SELECT b.body FROM tally.webhook_body b
                      WHERE b.received_at = e.received_at AND b.number = e.number OFFSET 0) AS b ON true
  LEFT JOIN tally.webhook_body_detached d ON d.day = (e.received_at AT TIME ZONE 'UTC')::date
 ORDER BY e.number;

-- name: verdicts
-- Of events whose rows were let go.
SELECT v.number, v.status, v.received_at, v.processed_at, v.reason
  FROM tally.webhook_verdict v WHERE v.number = ANY ($1::bigint[]) ORDER BY v.number;

-- name: orders
-- By the key that an event's reference is, or by the provider's id of their payment.
SELECT l.order_id FROM tally.payment_idempotency_log l WHERE l.tenant_id = $1 AND l.idempotency_key = ANY ($2::bytea[])
 UNION
SELECT l.order_id FROM tally.payment_idempotency_log l WHERE l.tenant_id = $1 AND l.payment_intent_id = ANY ($3::text[]);
