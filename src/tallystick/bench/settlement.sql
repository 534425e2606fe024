-- name: unguarded
-- For rows by the million, in a database that is thrown away: they are written past every guard, as the owner may.
ALTER TABLE tally.settlement DISABLE TRIGGER USER;
ALTER TABLE tally.settlement DROP CONSTRAINT IF EXISTS settlement_tenant_id_fkey;
ALTER TABLE tally.settlement_state DISABLE TRIGGER USER;
ALTER TABLE tally.settlement_state DROP CONSTRAINT IF EXISTS settlement_state_tenant_id_number_fkey;

-- name: load
-- Rows $1 to $2, all pending or all transferred, with no money behind them: only the claim is timed beside them. Their
-- ids and keys grow, which fills the indexes from one end; the claim looks at neither.
WITH made AS (
    INSERT INTO tally.settlement (tenant_id, id, attribution_id, squad_id, currency, gross_micros, fee_micros, net_micros,
                                  amount_micros, provider, destination, key, created_at)
    SELECT t.tenant_id, lpad(to_hex(n), 32, '0')::uuid, 'loaded-' || n, 'squad-' || n % 1000, 'EUR',
           10000000, 0, 10000000, 10000000, $3::text, 'acct_loaded' || n % 1000,
           decode(lpad(to_hex(n), 64, '0'), 'hex'), now() - interval '30 days'
      FROM tally.tenant t, generate_series($1::bigint, $2::bigint) AS n
     WHERE t.name = 'default'
    RETURNING tenant_id, number, provider, key, created_at
)
INSERT INTO tally.settlement_state (tenant_id, number, provider, status, claim_number, claim_token, claimed_by,
                                    processing_since, claimed_at, due_at, transfer_id, changed_at)
SELECT tenant_id, number, provider, $4::text, paid::integer, CASE WHEN paid THEN lpad(to_hex(number / 500), 32, '0')::uuid END,
       CASE WHEN paid THEN 'bench' END, CASE WHEN paid THEN created_at END, CASE WHEN paid THEN created_at END,
       CASE WHEN paid THEN created_at END, CASE WHEN paid THEN 'tr_' || encode(substring(key FROM 21), 'hex') END,
       created_at
  FROM made, (SELECT $4::text = 'transferred' AS paid) AS as_;

-- name: guarded
ALTER TABLE tally.settlement ENABLE TRIGGER USER;
ALTER TABLE tally.settlement_state ENABLE TRIGGER USER;

-- name: statuses
SELECT status, count(*) AS rows FROM tally.settlement_state GROUP BY status;
