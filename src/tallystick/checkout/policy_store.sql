-- name: read
SELECT late, other_amount, changed_by, changed_at FROM tally.checkout_policy WHERE tenant_id = $1;

-- name: put
INSERT INTO tally.checkout_policy AS p (tenant_id, late, other_amount, changed_by) VALUES ($1, $2, $3, $4)
    ON CONFLICT (tenant_id) DO UPDATE
   SET late = excluded.late, other_amount = excluded.other_amount, changed_by = excluded.changed_by,
       changed_at = clock_timestamp()
RETURNING late, other_amount, changed_by, changed_at;
