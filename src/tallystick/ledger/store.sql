-- name: lock_accounts
-- Sorted, so that two batches can wait for each other in one direction only. NO KEY UPDATE: rows that merely
-- refer to the account do not wait. The clock is read after each lock; the latest reading is after them all.
SELECT a.tenant_id, a.number, a.id, a.currency, a.floor_micros, a.balance_micros, a.entries, a.limited, a.posted_at,
       clock_timestamp() AS locked_at
  FROM (SELECT a.*
          FROM unnest($1::text::integer[], string_to_array($2::text, E'\n')) AS wanted (tenant_id, id)
          JOIN tally.account a USING (tenant_id, id)
         ORDER BY tenant_id, id
           FOR NO KEY UPDATE OF a) AS a;

-- name: lock_free_accounts
-- The same without waiting: who is held by another transaction is left out.
SELECT a.tenant_id, a.number, a.id, a.currency, a.floor_micros, a.balance_micros, a.entries, a.limited, a.posted_at,
       clock_timestamp() AS locked_at
  FROM (SELECT a.*
          FROM unnest($1::text::integer[], string_to_array($2::text, E'\n')) AS wanted (tenant_id, id)
          JOIN tally.account a USING (tenant_id, id)
         ORDER BY tenant_id, id
           FOR NO KEY UPDATE OF a SKIP LOCKED) AS a;

-- name: existing_accounts
-- Tells an account that is held by somebody from one that does not exist.
SELECT tenant_id, id
  FROM unnest($1::text::integer[], string_to_array($2::text, E'\n')) AS wanted (tenant_id, id)
  JOIN tally.account USING (tenant_id, id);

-- name: velocity
-- What each window of a limited account holds already. Read under the account's lock, so it cannot grow meanwhile.
-- Money that goes round can sum to more than any balance: no limit is larger than what the sum is cut to.
SELECT l.tenant_id, l.account_number, l.window_seconds, l.max_count, l.max_sum_micros, used.debits, used.micros
  FROM unnest($1::integer[], $2::bigint[]) AS wanted (tenant_id, account_number)
  JOIN tally.velocity_limit l USING (tenant_id, account_number)
 CROSS JOIN LATERAL (
       SELECT count(*) AS debits, least(coalesce(-sum(e.amount_micros), 0), 9223372036854775807)::bigint AS micros
         FROM tally.entry e
        WHERE e.tenant_id = l.tenant_id AND e.account_number = l.account_number AND e.amount_micros < 0
          AND e.number > tally.entry_number_at(l.tenant_id, l.account_number,
                                               $3::timestamptz - make_interval(secs => l.window_seconds))) AS used
 ORDER BY l.tenant_id, l.account_number, l.window_seconds;

-- name: read
SELECT o.tenant_id, o.id, o.key, o.request, o.body
  FROM unnest($1::text::integer[], $2::text::uuid[]) AS wanted (tenant_id, id)
  JOIN tally.operation o USING (tenant_id, id);

-- name: read_closed
SELECT c.tenant_id, c.closed_id
  FROM unnest($1::text::integer[], $2::text::uuid[]) AS wanted (tenant_id, closed_id)
  JOIN tally.closing c USING (tenant_id, closed_id);

-- name: try_keys
-- Keys that a caller's own transaction holds are locked by him (hold_key); whoever gets no lock here waits
-- for the next round. Only batches that met a lock before ask this, so the lock table stays small.
SELECT tenant_id, id
  FROM unnest($1::text::integer[], $2::text::uuid[]) AS wanted (tenant_id, id)
 WHERE NOT pg_try_advisory_xact_lock(tenant_id, hashtext(id::text));

-- name: hold_key
SELECT pg_advisory_xact_lock($1::integer, hashtext($2::uuid::text));

-- name: record
-- One statement for a small batch. The rows of tally.operation go in sorted: their primary key is the lock on
-- the idempotency key, and it is taken after those on the accounts. Triggers do the rest: balances, journal, outbox.
WITH operation AS (
    INSERT INTO tally.operation (tenant_id, id, key, request, body, at, author)
    SELECT tenant_id, id, key, request, body, $6, author
      FROM unnest($1::text::integer[], $2::uuid[], $3::text::text[], $4::bytea[], $5::bytea[], $16::text::text[])
           AS fresh (tenant_id, id, key, request, body, author)
), closing AS (
    -- The primary key refuses a second release or refund, whatever the code above thought.
    INSERT INTO tally.closing (tenant_id, closed_id, operation_id)
    SELECT * FROM unnest($13::integer[], $14::uuid[], $15::uuid[])
)
INSERT INTO tally.entry (tenant_id, account_number, number, operation_id, amount_micros, balance_micros, at)
SELECT tenant_id, account_number, number, operation_id, amount_micros, balance_micros, $6
  FROM unnest($7::text::integer[], $8::text::bigint[], $9::text::bigint[], $10::uuid[], $11::text::bigint[],
              $12::text::bigint[])
       AS fresh (tenant_id, account_number, number, operation_id, amount_micros, balance_micros);

-- name: record_ahead
-- The same, with a time for each entry ($17): some account's last one is later than the clock.
WITH operation AS (
    INSERT INTO tally.operation (tenant_id, id, key, request, body, at, author)
    SELECT tenant_id, id, key, request, body, $6, author
      FROM unnest($1::text::integer[], $2::uuid[], $3::text::text[], $4::bytea[], $5::bytea[], $16::text::text[])
           AS fresh (tenant_id, id, key, request, body, author)
), closing AS (
    INSERT INTO tally.closing (tenant_id, closed_id, operation_id)
    SELECT * FROM unnest($13::integer[], $14::uuid[], $15::uuid[])
)
INSERT INTO tally.entry (tenant_id, account_number, number, operation_id, amount_micros, balance_micros, at)
SELECT tenant_id, account_number, number, operation_id, amount_micros, balance_micros, at
  FROM unnest($7::text::integer[], $8::text::bigint[], $9::text::bigint[], $10::uuid[], $11::text::bigint[],
              $12::text::bigint[], $17::timestamptz[])
       AS fresh (tenant_id, account_number, number, operation_id, amount_micros, balance_micros, at);

-- name: close
INSERT INTO tally.closing (tenant_id, closed_id, operation_id)
SELECT * FROM unnest($1::integer[], $2::uuid[], $3::uuid[]);
