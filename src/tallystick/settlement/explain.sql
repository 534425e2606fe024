-- name: by_key
-- The live key, or one of an earlier generation.
SELECT s.id FROM tally.settlement s WHERE s.tenant_id = $1 AND s.key = $2
 UNION
SELECT i.subject FROM tally.intent i WHERE i.tenant_id = $1 AND i.key = $2 AND i.subject IS NOT NULL;

-- name: approvals
SELECT * FROM tally.approval WHERE tenant_id = $1 AND subject = $2 ORDER BY asked_at, id;

-- name: operations
-- The ledger operations that name a settlement. No index leads from one to the other, and none is needed: they stand in
-- the books of the squad's payable account or of what is in transit, just after a moment that the rows tell of.
SELECT DISTINCT ON (o.at, o.id) o.at, o.id, o.request, o.body
  FROM tally.account a
 CROSS JOIN unnest($3::timestamptz[]) AS moment (at)
 CROSS JOIN LATERAL (SELECT e.operation_id FROM tally.entry e
                      WHERE e.tenant_id = a.tenant_id AND e.account_number = a.number
                        AND e.number > tally.entry_number_at(a.tenant_id, a.number, moment.at - interval '1 microsecond')
                      ORDER BY e.number LIMIT $4) AS near
  JOIN tally.operation o ON o.tenant_id = a.tenant_id AND o.id = near.operation_id
 WHERE a.tenant_id = $1 AND a.id = ANY($2::text[]) AND (o.request = $5 OR position($6::bytea IN o.request) > 0)
 ORDER BY o.at, o.id;
