-- name: create
-- DO NOTHING answers a second creation with no row: the caller then begins again, and finds the first.
INSERT INTO tally.account (tenant_id, id, currency, floor_micros, limited)
VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (tenant_id, id) DO NOTHING
RETURNING number;

-- name: lock
SELECT number, currency, floor_micros, balance_micros,
       (SELECT coalesce(json_agg(json_build_object('window_seconds', window_seconds, 'max_count', max_count,
                                                   'max_sum_micros', max_sum_micros) ORDER BY window_seconds), '[]')
          FROM tally.velocity_limit l
         WHERE l.tenant_id = a.tenant_id AND l.account_number = a.number)::text AS limits
  FROM tally.account a WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE;

-- name: change
UPDATE tally.account SET floor_micros = $3, limited = $4 WHERE tenant_id = $1 AND number = $2;

-- name: clear_limits
DELETE FROM tally.velocity_limit WHERE tenant_id = $1 AND account_number = $2;

-- name: add_limit
INSERT INTO tally.velocity_limit (tenant_id, account_number, window_seconds, max_count, max_sum_micros)
VALUES ($1, $2, $3, $4, $5);

-- name: journal
INSERT INTO tally.journal (tenant_id, subject, body, digest) VALUES ($1, 'account', $2, $3);

-- name: read
SELECT id, currency, floor_micros, balance_micros, entries, created_at,
       (SELECT coalesce(json_agg(json_build_object('window_seconds', window_seconds, 'max_count', max_count,
                                                   'max_sum_micros', max_sum_micros) ORDER BY window_seconds), '[]')
          FROM tally.velocity_limit l
         WHERE l.tenant_id = a.tenant_id AND l.account_number = a.number)::text AS limits
  FROM tally.account a WHERE tenant_id = $1 AND id = $2;

-- name: balance_at
-- The running balance of the last entry at or before the moment; an account without one was empty.
SELECT coalesce((SELECT e.balance_micros FROM tally.entry e
                  WHERE e.tenant_id = a.tenant_id AND e.account_number = a.number AND e.number = upto.number), 0)
           AS balance_micros, upto.number AS entries
  FROM tally.account a
 CROSS JOIN LATERAL (SELECT tally.entry_number_at(a.tenant_id, a.number, $3) AS number) AS upto
 WHERE a.tenant_id = $1 AND a.id = $2;

-- name: list
SELECT id, currency, floor_micros, balance_micros, entries, created_at
  FROM tally.account WHERE tenant_id = $1 AND id > $2 ORDER BY id LIMIT $3;

-- name: entries
-- Newest first, by the account's own count: a page never shifts when new entries arrive.
SELECT e.number, e.operation_id, e.amount_micros, e.balance_micros, e.at
  FROM tally.account a
  JOIN tally.entry e ON e.tenant_id = a.tenant_id AND e.account_number = a.number
 WHERE a.tenant_id = $1 AND a.id = $2 AND e.number < $3
 ORDER BY e.number DESC LIMIT $4;

-- name: ensure
-- In the order of the unique index, so that two batches wait for each other in one direction only.
WITH made AS (
    INSERT INTO tally.account (tenant_id, id, currency, floor_micros)
    SELECT t, id, currency, floor
      FROM unnest($1::integer[], $2::text[], $3::text[], $4::bigint[]) AS wanted (t, id, currency, floor)
     WHERE NOT EXISTS (SELECT 1 FROM tally.account a WHERE a.tenant_id = wanted.t AND a.id = wanted.id)
     ORDER BY t, id
        ON CONFLICT (tenant_id, id) DO NOTHING
    RETURNING tenant_id, id, currency, floor_micros
)
SELECT count(tally.journal_step(made.tenant_id, 'account', convert_to(jsonb_build_object(
           'account', made.id, 'currency', made.currency, 'floor_micros', made.floor_micros,
           'limits', '[]'::jsonb)::text, 'UTF8'), by.author))
  FROM made
  JOIN unnest($1::integer[], $2::text[], $5::text[]) AS by (t, id, author) ON by.t = made.tenant_id AND by.id = made.id;
