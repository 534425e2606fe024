-- LATERAL with OFFSET 0, or with a lock, is a probe of an index for each row, whatever the planner thinks of a table that
-- was empty when it planned: a plan is made once for each connection. Written so (operation_type || '') that no partial
-- index is read through as a whole beside the one that finds the row.

-- name: charges_by_id
SELECT g.place, l.tenant_id, t.name AS tenant, l.order_id, l.idempotency_key, l.status, l.payment_intent_id
  FROM unnest($1::text::text[], $2::text::text[]) WITH ORDINALITY AS g (provider, id, place)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.payment_intent_id = g.id AND l.provider = g.provider AND l.operation_type || '' = 'CHARGE'
                     OFFSET 0) AS l
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t;

-- name: charges_by_key
-- For a payment whose id nobody has recorded yet: between which keys the one lies that its reference is a form of.
SELECT g.place, l.tenant_id, t.name AS tenant, l.order_id, l.idempotency_key, l.status, l.payment_intent_id
  FROM unnest($1::text[], $2::bytea[], $3::bytea[]) WITH ORDINALITY AS g (provider, low, high, place)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.idempotency_key BETWEEN g.low AND g.high AND l.provider = g.provider
                        AND l.operation_type || '' = 'CHARGE' OFFSET 0) AS l
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t;
