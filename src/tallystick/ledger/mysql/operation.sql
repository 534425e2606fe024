-- name: lock_accounts
-- The join walks the JSON array in its order, one index lookup each, so locks are taken in the order the caller
-- sorted. FORCE INDEX: on a small table the optimiser would scan it, and lock every account on its way.
-- The second statement reads the clock: within the first, time stands still at its beginning, before the locks.
SELECT a.tenant_id, a.number, a.id, a.currency, a.floor_micros, a.balance_micros, a.entries, a.limited, a.posted_at
  FROM JSON_TABLE(%s, '$[*]' COLUMNS (
           tenant_id INT PATH '$[0]',
           id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[1]')) AS wanted
       STRAIGHT_JOIN tally_account a FORCE INDEX (by_id) ON a.tenant_id = wanted.tenant_id AND a.id = wanted.id
   FOR UPDATE;
SELECT UTC_TIMESTAMP(6)

-- name: lock_free_accounts
-- The same without waiting: who is held by another transaction is left out.
SELECT a.tenant_id, a.number, a.id, a.currency, a.floor_micros, a.balance_micros, a.entries, a.limited, a.posted_at
  FROM JSON_TABLE(%s, '$[*]' COLUMNS (
           tenant_id INT PATH '$[0]',
           id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[1]')) AS wanted
       STRAIGHT_JOIN tally_account a FORCE INDEX (by_id) ON a.tenant_id = wanted.tenant_id AND a.id = wanted.id
   FOR UPDATE SKIP LOCKED;
SELECT UTC_TIMESTAMP(6)

-- name: existing_accounts
-- Tells an account that is held by somebody from one that does not exist.
SELECT a.tenant_id, a.id
  FROM JSON_TABLE(%s, '$[*]' COLUMNS (
           tenant_id INT PATH '$[0]',
           id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[1]')) AS wanted
       STRAIGHT_JOIN tally_account a FORCE INDEX (by_id) ON a.tenant_id = wanted.tenant_id AND a.id = wanted.id

-- name: velocity
-- What each window of a limited account holds already. Read under the account's lock, so it cannot grow meanwhile.
SELECT l.tenant_id, l.account_number, l.window_seconds, l.max_count, l.max_sum_micros,
       (SELECT COUNT(*) FROM tally_entry e FORCE INDEX (by_time)
         WHERE e.tenant_id = l.tenant_id AND e.account_number = l.account_number AND e.amount_micros < 0
           AND e.at > %s - INTERVAL l.window_seconds SECOND),
       (SELECT COALESCE(-SUM(e.amount_micros), 0) FROM tally_entry e FORCE INDEX (by_time)
         WHERE e.tenant_id = l.tenant_id AND e.account_number = l.account_number AND e.amount_micros < 0
           AND e.at > %s - INTERVAL l.window_seconds SECOND)
  FROM JSON_TABLE(%s, '$[*]' COLUMNS (tenant_id INT PATH '$[0]', account_number BIGINT PATH '$[1]')) AS wanted
       STRAIGHT_JOIN tally_velocity_limit l
          ON l.tenant_id = wanted.tenant_id AND l.account_number = wanted.account_number
 ORDER BY l.tenant_id, l.account_number, l.window_seconds

-- name: read
SELECT o.tenant_id, o.id, o.idempotency_key, o.request, o.body
  FROM JSON_TABLE(%s, '$[*]' COLUMNS (tenant_id INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS wanted
       STRAIGHT_JOIN tally_operation o FORCE INDEX (PRIMARY)
          ON o.tenant_id = wanted.tenant_id AND o.id = UNHEX(wanted.id)
 WHERE o.body IS NOT NULL

-- name: read_closed
SELECT c.tenant_id, c.closed_id
  FROM JSON_TABLE(%s, '$[*]' COLUMNS (tenant_id INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS wanted
       STRAIGHT_JOIN tally_closing c FORCE INDEX (PRIMARY)
          ON c.tenant_id = wanted.tenant_id AND c.closed_id = UNHEX(wanted.id)

-- name: glance_at_keys
-- Run where uncommitted rows can be seen: what is here and not yet committed is held by somebody at work.
SELECT o.tenant_id, o.id
  FROM JSON_TABLE(%s, '$[*]' COLUMNS (tenant_id INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS wanted
       STRAIGHT_JOIN tally_operation o FORCE INDEX (PRIMARY)
          ON o.tenant_id = wanted.tenant_id AND o.id = UNHEX(wanted.id)

-- name: claim
-- The placeholder. Its primary key is the lock on the idempotency key: a twin's insert waits here until we commit
-- or roll back. IGNORE passes over keys that are used already. It also forgives what it should not (a value that
-- does not fit is cut), so only the two columns that cannot be wrong are written.
INSERT IGNORE INTO tally_operation (tenant_id, id) VALUES (%s, %s)

-- name: unclaim
DELETE o FROM JSON_TABLE(%s, '$[*]' COLUMNS (tenant_id INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS wanted
       STRAIGHT_JOIN tally_operation o FORCE INDEX (PRIMARY)
          ON o.tenant_id = wanted.tenant_id AND o.id = UNHEX(wanted.id)
 WHERE o.body IS NULL

-- name: fill
-- Every row is there as our placeholder; a trigger refuses to change one that has a body.
INSERT INTO tally_operation (tenant_id, id, idempotency_key, request, body, at)
VALUES (%s, %s, %s, %s, %s, %s)
ON DUPLICATE KEY UPDATE idempotency_key = VALUES(idempotency_key), request = VALUES(request), body = VALUES(body),
                        at = VALUES(at)

-- name: enter
INSERT INTO tally_entry (tenant_id, account_number, number, operation_id, amount_micros, balance_micros, at)
VALUES (%s, %s, %s, %s, %s, %s, %s)

-- name: move
-- After the entries: a trigger compares each balance with the entries written since.
UPDATE JSON_TABLE(%s, '$[*]' COLUMNS (
           tenant_id INT PATH '$[0]', number BIGINT PATH '$[1]',
           balance_micros BIGINT PATH '$[2]', entries BIGINT PATH '$[3]')) AS moved
       STRAIGHT_JOIN tally_account a FORCE INDEX (PRIMARY)
          ON a.tenant_id = moved.tenant_id AND a.number = moved.number
   SET a.balance_micros = moved.balance_micros, a.entries = moved.entries, a.posted_at = GREATEST(a.posted_at, %s)

-- name: journal
INSERT INTO tally_journal (tenant_id, subject, operation_id, digest, author) VALUES (%s, %s, %s, %s, %s)

-- name: publish
INSERT INTO tally_outbox (tenant_id, topic, operation_id) VALUES (%s, %s, %s)

-- name: close
-- The primary key refuses a second release or refund, whatever the code above thought.
INSERT INTO tally_closing (tenant_id, closed_id, operation_id) VALUES (%s, %s, %s)
