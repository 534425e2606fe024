-- name: add
INSERT INTO tally.payment_break (kind, provider, purpose, object_id, word, amount_micros, currency, tenant_id, order_id,
                                 event_number)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::integer[],
                     $9::uuid[], $10::bigint[])
    ON CONFLICT (provider, object_id, kind, word) DO NOTHING;

-- name: list
SELECT number, kind, provider, purpose, object_id, word, amount_micros, currency, order_id, event_number, found_at,
       resolved_at, resolution, resolved_by
  FROM tally.payment_break
 WHERE ($1::boolean OR resolved_at IS NULL)
 ORDER BY found_at DESC, number DESC LIMIT $2;

-- name: resolve
UPDATE tally.payment_break SET resolved_at = clock_timestamp(), resolution = $2, resolved_by = $3
 WHERE number = $1 AND resolved_at IS NULL
RETURNING number;

-- name: figures
SELECT (SELECT count(*) FROM (SELECT 1 FROM tally.payment_break WHERE resolved_at IS NULL LIMIT $1) AS b) AS breaks,
       (SELECT count(*) FROM (SELECT 1 FROM tally.payment_receipt WHERE fate = 'REVIEW' LIMIT $1) AS r) AS reviews;
