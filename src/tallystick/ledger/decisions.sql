-- name: reply
SELECT request, body FROM tally.reply WHERE tenant_id = $1 AND key = $2;

-- name: is_operation
SELECT EXISTS (SELECT 1 FROM tally.operation WHERE tenant_id = $1 AND id = $2);

-- name: keep_reply
INSERT INTO tally.reply (tenant_id, key, request, body) VALUES ($1, $2, $3, $4);
