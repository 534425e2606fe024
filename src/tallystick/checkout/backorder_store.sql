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
