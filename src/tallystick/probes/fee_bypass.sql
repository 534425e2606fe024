-- name: settlements
SELECT attribution_id, gross_micros, fee_micros, net_micros, destination FROM tally.settlement WHERE tenant_id = $1;

-- name: fees
SELECT coalesce(sum(balance_micros), 0)::bigint FROM tally.account WHERE tenant_id = $1 AND id LIKE 'settlement:fees:%';

-- name: hold_clearing
SELECT number FROM tally.account WHERE tenant_id = $1 AND id = 'settlement:clearing:EUR' FOR UPDATE;

-- name: is_somebody_blocked
SELECT EXISTS (SELECT 1 FROM pg_stat_activity
                WHERE datname = current_database() AND pg_backend_pid() = ANY(pg_blocking_pids(pid)));

-- name: posted
SELECT id FROM tally.operation WHERE tenant_id = $1;

-- name: insert
INSERT INTO tally.settlement (tenant_id, id, attribution_id, squad_id, currency, gross_micros, fee_micros, net_micros,
                              amount_micros, provider, destination, key, created_at)
SELECT t, id, attribution, 'squad', 'EUR', gross, fee, net, net - net % 10000, 'simulator', 'acct_typed', key, now()
  FROM unnest($1::integer[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[])
       AS typed (t, id, attribution, gross, fee, net, key);

-- name: update_fee
UPDATE tally.settlement SET fee_micros = 0, net_micros = gross_micros WHERE tenant_id = $1;

-- name: update_gross
UPDATE tally.settlement SET gross_micros = gross_micros + 10000, net_micros = net_micros + 10000 WHERE tenant_id = $1;

-- name: update_net
UPDATE tally.settlement SET net_micros = net_micros + 10000 WHERE tenant_id = $1;

-- name: update_amount
UPDATE tally.settlement SET amount_micros = net_micros - 10000 WHERE tenant_id = $1;

-- name: update_key
UPDATE tally.settlement SET fee_micros = 0, net_micros = gross_micros, generation = generation + 1 WHERE tenant_id = $1;

-- name: update_currency
UPDATE tally.settlement SET currency = 'USD' WHERE tenant_id = $1;

-- name: update_tenant
UPDATE tally.settlement SET tenant_id = (SELECT min(tenant_id) FROM tally.tenant) WHERE tenant_id = $1;

-- name: upsert
INSERT INTO tally.settlement (tenant_id, id, attribution_id, squad_id, currency, gross_micros, fee_micros, net_micros,
                              amount_micros, provider, destination, key, created_at)
SELECT tenant_id, id, attribution_id, squad_id, currency, gross_micros, fee_micros, net_micros, amount_micros, provider,
       destination, key, created_at
  FROM tally.settlement WHERE tenant_id = $1
    ON CONFLICT (tenant_id, id) DO UPDATE SET fee_micros = 0, net_micros = excluded.gross_micros;

-- name: policy_traces
SELECT count(*) FROM tally.journal WHERE subject LIKE 'settlement.policy%';

-- name: delete_policy
DELETE FROM tally.settlement_policy WHERE tenant_id = $1;

-- name: truncate_policies
TRUNCATE tally.settlement_policy;

-- name: move_policy
UPDATE tally.settlement_policy SET tenant_id = (SELECT min(tenant_id) FROM tally.tenant) WHERE tenant_id = $1;

-- name: rename_policy
UPDATE tally.settlement_policy SET currency = 'XXX' WHERE tenant_id = $1;

-- name: hide_policy
INSERT INTO tally.settlement_policy (tenant_id, currency, percent_ppm, fixed_micros, minimum_micros, changed_by)
VALUES ($1, 'EUR', 0, 0, 0, 'nobody') ON CONFLICT (tenant_id, currency) DO UPDATE SET percent_ppm = 0, fixed_micros = 0,
       minimum_micros = 0;
