-- LATERAL with OFFSET 0, or with a lock, is a probe of an index for each row, whatever the planner thinks of a table that
-- was empty when it planned: a plan is made once for each connection.

-- name: lock_orders
-- Given sorted, and locked in that order: who charges, cancels, sweeps or pays an order passes here one by one.
SELECT o.tenant_id, o.id, o.status, o.sku, o.quantity, o.amount_micros, o.currency, p.late, p.other_amount,
       clock_timestamp() AS now
  FROM unnest($1::text::integer[], $2::text::uuid[]) AS wanted (t, i)
 CROSS JOIN LATERAL (SELECT * FROM tally.orders o WHERE o.tenant_id = wanted.t AND o.id = wanted.i
                        FOR NO KEY UPDATE) AS o
  LEFT JOIN LATERAL (SELECT * FROM tally.checkout_policy p WHERE p.tenant_id = o.tenant_id OFFSET 0) AS p ON true;

-- name: charges_again
-- In a statement of its own, after the locks: it must see what the one before us committed.
SELECT l.tenant_id, l.idempotency_key, l.status, l.payment_intent_id
  FROM unnest($1::text::integer[], $2::bytea[]) AS given (t, k)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.idempotency_key = given.k AND l.tenant_id = given.t OFFSET 0) AS l;

-- name: receipts
SELECT r.tenant_id, r.order_id, r.payment_intent_id, r.fate, r.event_number, f.status AS refund
  FROM unnest($1::text::integer[], $2::text::uuid[]) AS wanted (t, i)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_receipt r WHERE r.order_id = wanted.i AND r.tenant_id = wanted.t
                     OFFSET 0) AS r
  LEFT JOIN LATERAL (SELECT l.status FROM tally.payment_idempotency_log l
                      WHERE r.fate = 'REFUND' AND l.operation_type = 'REFUND'
                        AND l.payment_intent_id = r.payment_intent_id AND l.provider = r.provider
                        AND l.tenant_id = r.tenant_id ORDER BY l.attempt DESC LIMIT 1) AS f ON true;

-- name: disputed
-- Payments that a bank has taken back, and nobody has said that this is over.
SELECT b.provider, b.object_id
  FROM unnest($1::text[], $2::text[]) AS given (provider, id)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_break b
                      WHERE b.provider = given.provider AND b.object_id = given.id AND b.kind = 'disputed'
                        AND b.resolved_at IS NULL OFFSET 0) AS b;

-- name: lock_stocks
-- As in order.sql: given sorted. After the orders, as the triggers do.
SELECT s.tenant_id, s.sku, s.stock - s.reserved - s.sold AS available
  FROM unnest($1::integer[], $2::text[]) AS wanted (t, k)
 CROSS JOIN LATERAL (SELECT * FROM tally.sku s WHERE s.tenant_id = wanted.t AND s.sku = wanted.k
                        FOR NO KEY UPDATE) AS s;

-- name: learn
-- A charge whose answer was lost, and whose payment the provider tells of: it is there. A later answer is evidence only.
UPDATE tally.payment_idempotency_log l
   SET status = 'COMPLETED', payment_intent_id = given.id, completed_at = clock_timestamp(),
       claim_number = l.claim_number + 1, awaits_customer = given.awaits
  FROM unnest($1::integer[], $2::bytea[], $3::text[], $4::boolean[]) AS given (t, k, id, awaits)
 WHERE l.idempotency_key = given.k AND l.tenant_id = given.t AND l.status || '' = 'PENDING';

-- name: fail_charges
UPDATE tally.payment_idempotency_log l
   SET status = 'FAILED', reason = given.reason, completed_at = clock_timestamp(), claim_number = l.claim_number + 1
  FROM unnest($1::integer[], $2::bytea[], $3::text[]) AS given (t, k, reason)
 WHERE l.idempotency_key = given.k AND l.tenant_id = given.t AND l.status || '' = 'COMPLETED';

-- name: receive
-- No ON CONFLICT: a second receipt of a payment is a race that the order's lock excludes, or a bug.
INSERT INTO tally.payment_receipt (tenant_id, order_id, provider, payment_intent_id, charge_key, amount_micros, currency,
                                   fate, reason, event_number, received_at)
SELECT * FROM unnest($1::text::integer[], $2::text::uuid[], $3::text::text[], $4::text::text[], $5::bytea[],
                     $6::text::bigint[], $7::text::text[], $8::text::text[], $9::text::text[], $10::text::bigint[],
                     $11::timestamptz[]);

-- name: pay
-- A whole batch. Written so (status || '') that the primary key finds the rows.
UPDATE tally.orders o SET status = 'PAID', changed_at = clock_timestamp(), is_backordered = given.backordered
  FROM unnest($1::text::integer[], $2::text::uuid[], $3::text::boolean[]) AS given (t, i, backordered)
 WHERE o.tenant_id = given.t AND o.id = given.i AND o.status || '' IN ('PENDING', 'CANCELLED_BY_SWEEPER')
RETURNING o.id;

-- name: count
SELECT count(tally.order_counted(name, more)) FROM unnest($1::text[], $2::bigint[]) AS counted (name, more);
