-- name: stocks
-- Without a lock: where nothing is left, nobody has to wait in order to hear it.
SELECT s.tenant_id, s.sku, s.stock, s.reserved, s.sold, s.backordered
  FROM unnest($1::text::integer[], $2::text::text[]) AS wanted (t, k)
 CROSS JOIN LATERAL (SELECT * FROM tally.sku s WHERE s.tenant_id = wanted.t AND s.sku = wanted.k OFFSET 0) AS s;

-- name: lock_stocks
-- Given sorted, and locked in that order, as the triggers of tally.orders do. The clock is read after each lock.
SELECT s.tenant_id, s.sku, s.stock, s.reserved, s.sold, s.backordered, clock_timestamp() AS locked_at, x.secret
  FROM unnest($1::text::integer[], $2::text::text[]) AS wanted (t, k)
 CROSS JOIN LATERAL (SELECT * FROM tally.sku s WHERE s.tenant_id = wanted.t AND s.sku = wanted.k
                        FOR NO KEY UPDATE) AS s
 CROSS JOIN LATERAL (SELECT secret FROM tally.tenant_secret x WHERE x.tenant_id = s.tenant_id OFFSET 0) AS x;

-- name: lock_free_stocks
-- The same without waiting: what another transaction holds is left out.
SELECT s.tenant_id, s.sku, s.stock, s.reserved, s.sold, s.backordered, clock_timestamp() AS locked_at, x.secret
  FROM unnest($1::text::integer[], $2::text::text[]) AS wanted (t, k)
 CROSS JOIN LATERAL (SELECT * FROM tally.sku s WHERE s.tenant_id = wanted.t AND s.sku = wanted.k
                        FOR NO KEY UPDATE SKIP LOCKED) AS s
 CROSS JOIN LATERAL (SELECT secret FROM tally.tenant_secret x WHERE x.tenant_id = s.tenant_id OFFSET 0) AS x;

-- name: decided
-- Keys that a person's decision was made under: they cannot reserve anything as well.
SELECT r.tenant_id, r.key FROM unnest($1::text::integer[], $2::text::text[]) AS asked (t, k)
  JOIN tally.reply r ON r.key = asked.k AND r.tenant_id = asked.t;

-- name: reserve
-- One statement for a small batch; a large one is two COPY streams into the same tables.
-- No ON CONFLICT: who lost a race for a key runs again, and finds the first. Triggers move the counters once per SKU,
-- compare each order with the request under its key, and write journal and outbox.
WITH operation AS (
    INSERT INTO tally.operation (tenant_id, id, key, request, body, at, author)
    SELECT t, id, key, request, body, $6, author
      FROM unnest($1::text::integer[], $2::uuid[], $3::text::text[], $4::bytea[], $5::bytea[], $13::text::text[])
           AS fresh (t, id, key, request, body, author)
)
INSERT INTO tally.orders (tenant_id, id, sku, quantity, amount_micros, currency, reservation_token, created_at,
                          expires_at, changed_at)
SELECT t, id, sku, quantity, amount, currency, token, $6, $6::timestamptz + $12::interval, $6
  FROM unnest($1::text::integer[], $2::uuid[], $7::text::text[], $8::text::integer[], $9::text::bigint[],
              $10::text::text[], $11::uuid[])
       AS fresh (t, id, sku, quantity, amount, currency, token);

-- name: by_ids
SELECT o.*
  FROM unnest($1::integer[], $2::uuid[]) AS wanted (t, i)
 CROSS JOIN LATERAL (SELECT * FROM tally.orders o WHERE o.tenant_id = wanted.t AND o.id = wanted.i OFFSET 0) AS o;

-- name: lock_order
SELECT * FROM tally.orders WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE;

-- name: overdue
-- The oldest first, a bounded number, and none that another sweeper or a cancellation holds. By the statement's time,
-- which is constant within it: the index is then entered at the deadline, and orders that are not due are not looked at.
-- $3: what was due then; what becomes due while a sweep runs is for the next, so that it ends. $4: not these.
-- $5: the watermark, which one that was charged waits for, and for what stands at the provider; those that wait must not
-- fill the chunk.
SELECT o.tenant_id, o.id, o.expires_at, o.quantity, statement_timestamp() AS now
  FROM tally.orders o
 WHERE o.status = 'PENDING' AND o.expires_at <= least(statement_timestamp(), $3::timestamptz) - $1::interval
   AND o.id <> ALL ($4::uuid[])
   AND (NOT EXISTS (SELECT 1 FROM (SELECT 1 FROM tally.payment_idempotency_log l
                                    WHERE l.operation_type = 'CHARGE' AND l.order_id = o.id
                                      AND l.tenant_id = o.tenant_id OFFSET 0) AS l)
        OR (o.expires_at < $5::timestamptz - $1::interval
            AND (EXISTS (SELECT 1 FROM (SELECT 1 FROM tally.order_hold h
                                         WHERE h.order_id = o.id AND h.tenant_id = o.tenant_id
                                           AND h.verdict IN ('cancelled', 'absent', 'given_up') OFFSET 0) AS h)
                 OR NOT EXISTS (SELECT 1 FROM (SELECT 1 FROM tally.payment_idempotency_log l
                                                WHERE l.operation_type = 'CHARGE'
                                                  AND (l.status <> 'FAILED' OR l.is_confirmable)
                                                  AND l.order_id = o.id AND l.tenant_id = o.tenant_id
                                               OFFSET 0) AS l))))
 ORDER BY o.expires_at LIMIT $2 FOR NO KEY UPDATE OF o SKIP LOCKED;

-- name: charged
-- Which of these were ever charged, whether a charge of them is live (release.sql says when), and whether they are released.
-- In a statement of its own, after the locks: a click that was under way when they were read has committed, or finds the order
-- expired.
SELECT o.i AS id, l.is_live, coalesce(h.verdict IN ('cancelled', 'absent', 'given_up'), false) AS is_released
  FROM unnest($1::integer[], $2::uuid[]) AS o (t, i)
 CROSS JOIN LATERAL (SELECT bool_or(l.status <> 'FAILED' OR l.is_confirmable) AS is_live
                       FROM tally.payment_idempotency_log l
                      WHERE l.operation_type = 'CHARGE' AND l.order_id = o.i AND l.tenant_id = o.t) AS l
  LEFT JOIN LATERAL (SELECT h.verdict FROM tally.order_hold h
                      WHERE h.order_id = o.i AND h.tenant_id = o.t OFFSET 0) AS h ON true
 WHERE l.is_live IS NOT NULL;

-- name: finish
-- Only what is still PENDING. The row is found by its primary key; written plainly, the condition on status would tempt
-- the planner to walk the index of all that are pending.
UPDATE tally.orders o SET status = $3, changed_at = clock_timestamp()
  FROM unnest($1::integer[], $2::uuid[]) AS wanted (t, i)
 WHERE o.tenant_id = wanted.t AND o.id = wanted.i AND o.status || '' = 'PENDING'
RETURNING o.*;

-- name: add_sku
INSERT INTO tally.sku (tenant_id, sku, stock) VALUES ($1, $2, $3) ON CONFLICT (tenant_id, sku) DO NOTHING
RETURNING tenant_id, sku, stock, reserved, sold, backordered;

-- name: restock
UPDATE tally.sku SET stock = $3 WHERE tenant_id = $1 AND sku = $2
RETURNING tenant_id, sku, stock, reserved, sold, backordered;

-- name: counts
SELECT name, sum(value)::bigint AS value FROM tally.order_count GROUP BY name ORDER BY name;

-- name: waiting
-- How many are pending, up to a bound, and for how long the oldest has been past its deadline: 0 if none is.
SELECT (SELECT count(*) FROM (SELECT 1 FROM tally.orders WHERE status = 'PENDING' LIMIT $1) AS p) AS pending,
       (SELECT greatest(coalesce(extract(epoch FROM clock_timestamp() - min(expires_at)), 0), 0)::float8
          FROM tally.orders WHERE status = 'PENDING') AS overdue_seconds;

