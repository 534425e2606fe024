-- name: as_reader
-- For the whole session: row-level security holds for it, and it cannot write.
SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY; SET ROLE tallystick_reader;

-- name: marks
-- All that can change of how orders stand, without looking at it: the transactions that last wrote the order and each row
-- of its log, charges and refunds alike. A mark that moved says: read it. Locks do not move it.
SELECT o.tenant_id, o.id, o.xmin::text || coalesce(l.marks, '') AS mark
  FROM unnest($1::integer[], $2::uuid[]) AS wanted (t, i)
 CROSS JOIN LATERAL (SELECT o.xmin, o.tenant_id, o.id FROM tally.orders o
                      WHERE o.tenant_id = wanted.t AND o.id = wanted.i OFFSET 0) AS o
 CROSS JOIN LATERAL (SELECT string_agg(' ' || l.xmin::text || '/' || l.ctid::text, '' ORDER BY l.ctid) AS marks
                       FROM (SELECT c.xmin, c.ctid FROM tally.payment_idempotency_log c
                              WHERE c.operation_type = 'CHARGE' AND c.order_id = wanted.i AND c.tenant_id = wanted.t
                              UNION ALL
                             -- In the order of the index that is meant: see order_with_payment.
                             (SELECT r.xmin, r.ctid FROM tally.payment_idempotency_log r
                               WHERE r.operation_type = 'REFUND' AND r.order_id = wanted.i AND r.tenant_id = wanted.t
                               ORDER BY r.created_at, r.attempt OFFSET 0)) AS l) AS l;

-- name: notify
-- In a transaction of its own: NOTIFY takes a lock of the whole server at commit. One commit for all of them.
SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload;
