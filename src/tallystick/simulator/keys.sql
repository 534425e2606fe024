-- name: find
SELECT fingerprint, first_at, reply FROM remembered WHERE dialect = ? AND scope = ? AND key = ?;

-- name: store
INSERT INTO remembered (dialect, scope, key, fingerprint, first_at, reply) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (key, scope, dialect)
    DO UPDATE SET fingerprint = excluded.fingerprint, first_at = excluded.first_at, reply = excluded.reply;

-- name: forget
DELETE FROM remembered WHERE dialect = ? AND scope = ? AND key = ?;

-- name: count
SELECT dialect, count(*) FROM remembered GROUP BY dialect ORDER BY dialect;
