-- name: add
INSERT INTO tally.note (tenant_id, text) VALUES ($1, $2) RETURNING number;

-- name: count
UPDATE tally.note SET counted = true WHERE NOT counted RETURNING number;

-- name: figures
SELECT count(*) FILTER (WHERE counted) AS counted, count(*) FILTER (WHERE NOT counted) AS waiting FROM tally.note;
