-- name: create
INSERT INTO tally_account (tenant_id, id, currency, floor_micros, limited) VALUES (%s, %s, %s, %s, %s)

-- name: lock
SELECT number, currency, balance_micros FROM tally_account WHERE tenant_id = %s AND id = %s FOR UPDATE

-- name: change
UPDATE tally_account SET floor_micros = %s, limited = %s WHERE tenant_id = %s AND number = %s

-- name: clear_limits
DELETE FROM tally_velocity_limit WHERE tenant_id = %s AND account_number = %s

-- name: add_limit
INSERT INTO tally_velocity_limit (tenant_id, account_number, window_seconds, max_count, max_sum_micros)
VALUES (%s, %s, %s, %s, %s)

-- name: journal
INSERT INTO tally_journal (tenant_id, subject, body, digest, author) VALUES (%s, 'account', %s, %s, %s)

-- name: read
SELECT number, id, currency, floor_micros, balance_micros, entries, created_at
  FROM tally_account WHERE tenant_id = %s AND id = %s

-- name: limits
SELECT window_seconds, max_count, max_sum_micros
  FROM tally_velocity_limit WHERE tenant_id = %s AND account_number = %s ORDER BY window_seconds

-- name: balance_at
-- The running balance of the last entry at or before the moment. Times never go back within an account, and several
-- entries of one batch share theirs: the highest number of the latest time is the last.
SELECT e.balance_micros, e.number
  FROM tally_entry e
 WHERE e.tenant_id = %s AND e.account_number = %s
   AND e.number = (SELECT f.number FROM tally_entry f
                    WHERE f.tenant_id = e.tenant_id AND f.account_number = e.account_number AND f.at <= %s
                    ORDER BY f.at DESC, f.number DESC LIMIT 1)

-- name: list
SELECT id, currency, floor_micros, balance_micros, entries, created_at
  FROM tally_account WHERE tenant_id = %s AND id > %s ORDER BY id LIMIT %s

-- name: entries
-- Newest first, by the account's own count: a page never shifts when new entries arrive.
SELECT number, operation_id, amount_micros, balance_micros, at
  FROM tally_entry WHERE tenant_id = %s AND account_number = %s AND number < %s
 ORDER BY number DESC LIMIT %s
