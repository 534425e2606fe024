-- name: ask
INSERT INTO tally.approval (tenant_id, id, subject, action, generation, reason, evidence, asked_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
RETURNING *;

-- name: open_approval
SELECT * FROM tally.approval WHERE tenant_id = $1 AND subject = $2 AND action = $3 AND decision IS NULL;

-- name: lock_approval
-- An earlier release knew who asked by his key alone.
SELECT p.*, (SELECT k.owner FROM tally.api_key k WHERE k.tenant_id = p.tenant_id AND k.prefix = p.asked_by) AS asker
  FROM tally.approval p WHERE p.tenant_id = $1 AND p.id = $2 FOR NO KEY UPDATE OF p;

-- name: approve
UPDATE tally.approval SET decision = $3, decided_by = $4, decided_at = clock_timestamp(), decided_why = $5
 WHERE tenant_id = $1 AND id = $2
RETURNING *;

-- name: approval
SELECT * FROM tally.approval WHERE tenant_id = $1 AND id = $2;

-- name: approvals
SELECT * FROM tally.approval WHERE tenant_id = $1 AND decision IS NULL ORDER BY asked_at, id LIMIT $2;
