-- name: conservation
-- Every transaction sums to zero per currency, and therefore all balances do. Held by nothing but our code here.
SELECT (SELECT COUNT(*) FROM (
            SELECT 1 FROM tally_entry e
              JOIN tally_account a ON a.tenant_id = e.tenant_id AND a.number = e.account_number
             GROUP BY e.tenant_id, e.operation_id, a.currency HAVING SUM(e.amount_micros) <> 0) AS unbalanced)
     + (SELECT COUNT(*) FROM (
            SELECT 1 FROM tally_account GROUP BY tenant_id, currency HAVING SUM(balance_micros) <> 0) AS unbalanced),
       (SELECT COUNT(*) FROM tally_operation)

-- name: solvency
SELECT COALESCE(SUM(COALESCE(balance_micros < floor_micros, 0)), 0), COUNT(*) FROM tally_account

-- name: balances
-- Each account's balance is the sum of its entries, numbered 1..n, every running balance following from the one
-- before. Entries of an account that does not exist are kept out by a foreign key.
WITH chained AS (
    SELECT tenant_id, account_number, number, amount_micros, balance_micros, at,
           COALESCE(LAG(balance_micros) OVER account_order, 0) AS before_micros,
           COALESCE(LAG(number) OVER account_order, 0) AS number_before,
           LAG(at) OVER account_order AS at_before
      FROM tally_entry
    WINDOW account_order AS (PARTITION BY tenant_id, account_number ORDER BY number)
), summed AS (
    SELECT tenant_id, account_number, SUM(amount_micros) AS total, COUNT(*) AS entries,
           SUM(CAST(before_micros AS DECIMAL(20)) + amount_micros <> balance_micros OR number_before + 1 <> number
               OR COALESCE(at < at_before, 0)) AS jumps
      FROM chained GROUP BY tenant_id, account_number
)
SELECT COALESCE(SUM(COALESCE(s.jumps, 0) <> 0 OR a.entries <> COALESCE(s.entries, 0)
                    OR a.balance_micros <> COALESCE(s.total, 0)), 0),
       COUNT(*)
  FROM tally_account a
  LEFT JOIN summed s ON s.tenant_id = a.tenant_id AND s.account_number = a.number

-- name: one_effect_per_key
-- No placeholder was committed; an operation's id is the digest of its tenant and key, so no key has two; and the
-- entries in the books are those in the answer that is replayed, and no others.
WITH answered AS (
    SELECT o.tenant_id, o.id, e.account, e.amount_micros, e.balance_micros, e.number
      FROM tally_operation o
           JOIN JSON_TABLE(CONVERT(o.body USING utf8mb4), '$.entries[*]' COLUMNS (
               account VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$.account',
               amount_micros BIGINT PATH '$.amount_micros',
               balance_micros BIGINT PATH '$.balance_micros',
               number BIGINT PATH '$.number')) AS e
     WHERE o.body IS NOT NULL
), matched AS (
    SELECT COUNT(*) AS entries
      FROM answered x
      JOIN tally_account a ON a.tenant_id = x.tenant_id AND a.id = x.account
      JOIN tally_entry e ON e.tenant_id = a.tenant_id AND e.account_number = a.number AND e.number = x.number
     WHERE e.operation_id = x.id AND e.amount_micros = x.amount_micros AND e.balance_micros = x.balance_micros
)
SELECT (SELECT COUNT(*) FROM tally_operation WHERE body IS NULL)
     + (SELECT COUNT(*) FROM tally_operation o JOIN tally_tenant t ON t.tenant_id = o.tenant_id
         WHERE o.body IS NOT NULL AND o.id <> LEFT(UNHEX(SHA2(CONCAT(
                   '{version}:', CHAR_LENGTH(t.name), ':', t.name, ':', CHAR_LENGTH(o.idempotency_key), ':',
                   o.idempotency_key), 256)), 16))
     + (SELECT COUNT(*) FROM answered) + (SELECT COUNT(*) FROM tally_entry) - 2 * (SELECT entries FROM matched),
       (SELECT COUNT(*) FROM tally_operation)

-- name: closings
-- Every release and refund has closed what it names, once, and nothing is closed without one.
SELECT (SELECT count(*)
          FROM tally_operation o
          LEFT JOIN tally_closing c
            ON c.tenant_id = o.tenant_id AND c.operation_id = o.id
           AND c.closed_id = UNHEX(SUBSTRING(JSON_VALUE(CONVERT(o.body USING utf8mb4), '$.closes'), 4))
         WHERE (JSON_VALUE(CONVERT(o.body USING utf8mb4), '$.closes') IS NOT NULL
                OR JSON_VALUE(CONVERT(o.body USING utf8mb4), '$.kind') IN ('release', 'refund'))
           AND c.closed_id IS NULL)
     + (SELECT count(*)
          FROM tally_closing c
          JOIN tally_operation o ON o.tenant_id = c.tenant_id AND o.id = c.operation_id
         WHERE c.closed_id <> COALESCE(UNHEX(SUBSTRING(JSON_VALUE(CONVERT(o.body USING utf8mb4), '$.closes'), 4)), ''))
           AS broken,
       (SELECT count(*) FROM tally_closing) AS checked;

-- name: journal
-- Every operation is in the journal once, under the digest that its stored bytes give, and once in the outbox.
WITH expected AS (
    SELECT o.tenant_id, o.id, UNHEX(SHA2(CONCAT(
               _binary 'tallystick/journal/1',
               UNHEX(LPAD(HEX(LENGTH(t.name)), 8, '0')), CAST(t.name AS BINARY),
               UNHEX('00000009'), _binary 'operation',
               UNHEX(LPAD(HEX(LENGTH(o.request)), 8, '0')), o.request,
               UNHEX(LPAD(HEX(LENGTH(o.body)), 8, '0')), o.body), 256)) AS digest
      FROM tally_operation o JOIN tally_tenant t ON t.tenant_id = o.tenant_id
), found AS (
    SELECT (SELECT COUNT(*) FROM tally_journal j
             WHERE j.tenant_id = x.tenant_id AND j.operation_id = x.id AND j.digest = x.digest) AS right_ones,
           (SELECT COUNT(*) FROM tally_journal j WHERE j.tenant_id = x.tenant_id AND j.operation_id = x.id) AS steps,
           (SELECT COUNT(*) FROM tally_outbox p WHERE p.tenant_id = x.tenant_id AND p.operation_id = x.id) AS events
      FROM expected x
)
SELECT COALESCE(SUM(right_ones <> 1 OR steps <> 1 OR events <> 1), 0), COUNT(*) FROM found
