-- name: conservation
-- Every transaction sums to zero per currency, and therefore all balances do.
SELECT (SELECT count(*) FROM (
            SELECT 1 FROM tally.entry e
              JOIN tally.account a ON a.tenant_id = e.tenant_id AND a.number = e.account_number
             GROUP BY e.tenant_id, e.operation_id, a.currency HAVING sum(e.amount_micros) <> 0) AS unbalanced)
     + (SELECT count(*) FROM (
            SELECT 1 FROM tally.account GROUP BY tenant_id, currency HAVING sum(balance_micros) <> 0) AS unbalanced)
           AS broken,
       (SELECT count(*) FROM tally.operation) AS checked;

-- name: solvency
-- Now, and after every single entry since the floor was set: an entry below a floor that still stands is counted
-- only for the present balance, because floors may be raised later.
SELECT count(*) FILTER (WHERE balance_micros < floor_micros) AS broken, count(*) AS checked FROM tally.account;

-- name: balances
-- Each account's balance is the sum of its entries, its last running balance, and its entries are numbered 1..n
-- with every running balance following from the one before.
WITH chained AS (
    SELECT tenant_id, account_number, number, amount_micros, balance_micros, at,
           lag(balance_micros, 1, 0) OVER account_order AS before,
           lag(number, 1, 0) OVER account_order AS number_before,
           lag(at, 1, '-infinity') OVER account_order AS at_before
      FROM tally.entry
    WINDOW account_order AS (PARTITION BY tenant_id, account_number ORDER BY number)
), summed AS (
    SELECT tenant_id, account_number, sum(amount_micros) AS total, count(*) AS entries,
           count(*) FILTER (WHERE before + amount_micros <> balance_micros OR number_before + 1 <> number
                               OR at < at_before) AS jumps
      FROM chained GROUP BY tenant_id, account_number
)
SELECT count(*) FILTER (WHERE a.number IS NULL OR coalesce(s.jumps, 0) <> 0 OR a.entries <> coalesce(s.entries, 0)
                           OR a.balance_micros <> coalesce(s.total, 0)) AS broken,
       count(*) AS checked
  FROM tally.account a
  FULL JOIN summed s ON s.tenant_id = a.tenant_id AND s.account_number = a.number;

-- name: one_effect_per_key
-- An operation's id is the digest of its tenant and key; no key has two; and the entries in the books are those
-- in the answer that is replayed.
WITH answered AS (
    SELECT o.tenant_id, o.id, e.account, e.amount_micros, e.balance_micros, e.number
      FROM tally.operation o
     CROSS JOIN LATERAL jsonb_to_recordset(convert_from(o.body, 'UTF8')::jsonb -> 'entries')
           AS e (account text, amount_micros bigint, balance_micros bigint, number bigint)
), booked AS (
    SELECT e.tenant_id, e.operation_id AS id, a.id AS account, e.amount_micros, e.balance_micros, e.number
      FROM tally.entry e JOIN tally.account a ON a.tenant_id = e.tenant_id AND a.number = e.account_number
)
SELECT (SELECT count(*) FROM tally.operation o JOIN tally.tenant t USING (tenant_id)
         WHERE o.id <> encode(substring(sha256(convert_to(
                   '{version}:' || length(t.name) || ':' || t.name || ':' || length(o.key) || ':' || o.key, 'UTF8'))
               FROM 1 FOR 16), 'hex')::uuid)
     + (SELECT count(*) FROM (SELECT 1 FROM tally.operation GROUP BY tenant_id, key HAVING count(*) > 1) AS twice)
     + (SELECT count(*) FROM (SELECT * FROM answered EXCEPT ALL SELECT * FROM booked) AS not_booked)
     + (SELECT count(*) FROM (SELECT * FROM booked EXCEPT ALL SELECT * FROM answered) AS not_answered) AS broken,
       (SELECT count(*) FROM tally.operation) AS checked;

-- name: journal
-- Every operation is in the journal once, under the digest that its stored bytes give, and once in the outbox.
WITH expected AS (
    SELECT o.tenant_id, o.id,
           sha256('tallystick/journal/1'::bytea
               || int4send(octet_length(t.name)) || convert_to(t.name, 'UTF8')
               || int4send(9) || 'operation'::bytea
               || int4send(octet_length(o.request)) || o.request
               || int4send(octet_length(o.body)) || o.body) AS digest
      FROM tally.operation o JOIN tally.tenant t USING (tenant_id)
)
SELECT (SELECT count(*) FROM (
            SELECT tenant_id, id, digest FROM expected
            EXCEPT ALL
            SELECT tenant_id, operation_id, digest FROM tally.journal WHERE operation_id IS NOT NULL) AS missing)
     + (SELECT count(*) FROM (
            SELECT tenant_id, operation_id, digest FROM tally.journal WHERE operation_id IS NOT NULL
            EXCEPT ALL
            SELECT tenant_id, id, digest FROM expected) AS unexplained) AS broken,
       (SELECT count(*) FROM tally.journal) AS checked;

-- name: tenants
-- No row names an account or an operation that its own tenant does not have.
SELECT (SELECT count(*) FROM tally.entry e
         WHERE NOT EXISTS (SELECT 1 FROM tally.account a
                            WHERE a.tenant_id = e.tenant_id AND a.number = e.account_number)
            OR NOT EXISTS (SELECT 1 FROM tally.operation o
                            WHERE o.tenant_id = e.tenant_id AND o.id = e.operation_id))
     + (SELECT count(*) FROM tally.outbox x
         WHERE x.operation_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM tally.operation o
                            WHERE o.tenant_id = x.tenant_id AND o.id = x.operation_id)) AS broken,
       (SELECT count(*) FROM tally.entry) AS checked;
