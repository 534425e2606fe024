-- LATERAL with OFFSET 0, or with a lock, is a probe of an index for each row, whatever the planner thinks of a table that
-- was empty when it planned: a plan is made once for each connection.

-- name: charges_by_id
SELECT g.place, l.tenant_id, t.name AS tenant, l.order_id, l.idempotency_key, l.status, l.payment_intent_id
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS g (provider, id, place)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.payment_intent_id = g.id AND l.provider = g.provider AND l.operation_type = 'CHARGE'
                     OFFSET 0) AS l
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t;

-- name: charges_by_key
-- For a payment whose id nobody has recorded yet: between which keys the one lies that its reference is a form of.
SELECT g.place, l.tenant_id, t.name AS tenant, l.order_id, l.idempotency_key, l.status, l.payment_intent_id
  FROM unnest($1::text[], $2::bytea[], $3::bytea[]) WITH ORDINALITY AS g (provider, low, high, place)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.idempotency_key BETWEEN g.low AND g.high AND l.provider = g.provider
                        AND l.operation_type = 'CHARGE' OFFSET 0) AS l
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t;

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
       claim_number = l.claim_number + 1
  FROM unnest($1::integer[], $2::bytea[], $3::text[]) AS given (t, k, id)
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
SELECT * FROM unnest($1::text::integer[], $2::text::uuid[], $3::text[], $4::text[], $5::bytea[], $6::text::bigint[],
                     $7::text[], $8::text[], $9::text[], $10::text::bigint[], $11::timestamptz[]);

-- name: pay
-- A whole batch. Written so (status || '') that the primary key finds the rows.
UPDATE tally.orders o SET status = 'PAID', changed_at = clock_timestamp(), is_backordered = given.backordered
  FROM unnest($1::text::integer[], $2::text::uuid[], $3::text::boolean[]) AS given (t, i, backordered)
 WHERE o.tenant_id = given.t AND o.id = given.i AND o.status || '' IN ('PENDING', 'CANCELLED_BY_SWEEPER')
RETURNING o.id;

-- name: add_breaks
INSERT INTO tally.payment_break (kind, provider, purpose, object_id, word, amount_micros, currency, tenant_id, order_id,
                                 event_number)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::integer[],
                     $9::uuid[], $10::bigint[])
    ON CONFLICT (provider, object_id, kind, word) DO NOTHING;

-- name: count
SELECT count(tally.order_counted(name, more)) FROM unnest($1::text[], $2::bigint[]) AS counted (name, more);

-- name: fillable
-- Backorders whose SKU has stock again, the oldest first. Only of SKUs that have enough for the one who waits longest: those
-- who wait for more than there is must not fill every chunk, and keep everybody else's from being looked at. Not those that
-- somebody holds.
WITH ready AS MATERIALIZED (
    SELECT w.tenant_id, w.sku
      FROM (SELECT DISTINCT tenant_id, sku FROM tally.orders WHERE is_backordered) AS w
     CROSS JOIN LATERAL (SELECT s.stock - s.reserved - s.sold AS available FROM tally.sku s
                          WHERE s.tenant_id = w.tenant_id AND s.sku = w.sku OFFSET 0) AS s
     CROSS JOIN LATERAL (SELECT o.quantity FROM tally.orders o
                          WHERE o.tenant_id = w.tenant_id AND o.sku = w.sku AND o.is_backordered
                          ORDER BY o.changed_at LIMIT 1) AS longest
     WHERE s.available >= longest.quantity
)
SELECT o.tenant_id, o.id, o.sku, o.quantity
  FROM ready r
  JOIN tally.orders o ON o.tenant_id = r.tenant_id AND o.sku = r.sku AND o.is_backordered
 ORDER BY o.changed_at LIMIT $1 FOR NO KEY UPDATE OF o SKIP LOCKED;

-- name: fill
UPDATE tally.orders o SET is_backordered = false, changed_at = clock_timestamp()
  FROM unnest($1::integer[], $2::uuid[]) AS given (t, i)
 WHERE o.tenant_id = given.t AND o.id = given.i AND o.is_backordered
RETURNING o.id;

-- name: policy
SELECT late, other_amount, changed_by, changed_at FROM tally.checkout_policy WHERE tenant_id = $1;

-- name: put_policy
INSERT INTO tally.checkout_policy AS p (tenant_id, late, other_amount, changed_by) VALUES ($1, $2, $3, $4)
    ON CONFLICT (tenant_id) DO UPDATE
   SET late = excluded.late, other_amount = excluded.other_amount, changed_by = excluded.changed_by,
       changed_at = clock_timestamp()
RETURNING late, other_amount, changed_by, changed_at;

-- name: breaks
SELECT number, kind, provider, purpose, object_id, word, amount_micros, currency, order_id, event_number, found_at,
       resolved_at, resolution, resolved_by
  FROM tally.payment_break
 WHERE ($1::boolean OR resolved_at IS NULL)
 ORDER BY found_at DESC, number DESC LIMIT $2;

-- name: resolve_break
UPDATE tally.payment_break SET resolved_at = clock_timestamp(), resolution = $2, resolved_by = $3
 WHERE number = $1 AND resolved_at IS NULL
RETURNING number;

-- name: figures
SELECT (SELECT count(*) FROM (SELECT 1 FROM tally.payment_break WHERE resolved_at IS NULL LIMIT $1) AS b) AS breaks,
       (SELECT count(*) FROM (SELECT 1 FROM tally.payment_receipt WHERE fate = 'REVIEW' LIMIT $1) AS r) AS reviews;
