-- name: operation
-- By id, or by key: ids are digests of keys, so both are the primary key.
SELECT o.id, o.key, o.request, o.body, o.at,
       (SELECT c.operation_id FROM tally.closing c WHERE c.tenant_id = o.tenant_id AND c.closed_id = o.id) AS closed_by
  FROM tally.operation o WHERE o.tenant_id = $1 AND o.id = $2;
