-- name: relations
-- Everything in the schema that can be selected from.
SELECT quote_ident(c.relname) AS name FROM pg_class c
 WHERE c.relnamespace = 'tally'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S') ORDER BY 1;

-- name: walled
-- Every table that has a tenant.
SELECT quote_ident(c.relname) AS name FROM pg_class c
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
 WHERE c.relnamespace = 'tally'::regnamespace AND c.relkind IN ('r', 'p') ORDER BY 1;

-- name: digest
SELECT md5(coalesce(string_agg(t::text, chr(10) ORDER BY t::text), '')) FROM tally.{table} AS t WHERE tenant_id = $1;

-- name: operations
SELECT id FROM tally.operation WHERE tenant_id = $1;

-- name: transfer
SELECT transfer_id FROM tally.settlement_state WHERE tenant_id = $1 AND status = 'transferred';

-- name: oracle_event
SELECT count(*) FROM tally.settlement_event WHERE convert_from(body, 'UTF8')::integer > 0;

-- name: oracle_approval
SELECT count(*) FROM tally.approval WHERE reason::integer > 0;

-- name: oracle_policy
SELECT count(*) FROM tally.settlement_policy WHERE changed_by::integer > 0;

-- name: statistics
SELECT s::text AS told FROM pg_stats s WHERE schemaname = 'tally';

-- name: all_statistics
SELECT s::text AS told FROM pg_statistic s;

-- name: sequence
SELECT last_value || 'v1ct1m' FROM tally.settlement_number_seq;
