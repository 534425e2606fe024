-- name: policies
-- Shared with other creators; a change of the policy waits until they are done, and they until it is.
-- Both policies: the fee's lines, and the line of authority (currency NULL) where a tenant has one.
WITH fee AS (
    SELECT tenant_id, currency, percent_ppm, fixed_micros, minimum_micros
      FROM tally.settlement_policy WHERE tenant_id = ANY($1::integer[]) ORDER BY tenant_id, currency FOR SHARE
), authority AS (
    SELECT tenant_id, known_destinations, waiting_seconds
      FROM tally.authority_policy WHERE tenant_id = ANY($1::integer[]) ORDER BY tenant_id FOR SHARE
)
SELECT tenant_id, currency, percent_ppm, fixed_micros, minimum_micros, NULL::boolean AS known_destinations,
       NULL::integer AS waiting_seconds, clock_timestamp() AS now
  FROM fee
 UNION ALL
SELECT tenant_id, NULL, NULL, NULL, NULL, known_destinations, waiting_seconds, clock_timestamp() FROM authority;

-- name: create
-- No ON CONFLICT: who lost a race must not have posted anything, so the whole batch is run again and finds the first.
WITH made AS (
    INSERT INTO tally.settlement (tenant_id, id, attribution_id, squad_id, currency, gross_micros, fee_micros, net_micros,
                                  amount_micros, provider, destination, key, created_at, source, needs_approval)
    SELECT t, id, attribution, squad, currency, gross, fee, net, amount, provider, destination, key, $13::timestamptz, source,
           held
      FROM unnest($1::integer[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
                  $9::bigint[], $10::text[], $11::text[], $12::bytea[], $14::text[], $15::boolean[])
           AS wanted (t, id, attribution, squad, currency, gross, fee, net, amount, provider, destination, key, source, held)
     ORDER BY t, id
    RETURNING tenant_id, number, provider, needs_approval
)
INSERT INTO tally.settlement_state (tenant_id, number, provider, changed_at, status)
SELECT tenant_id, number, provider, $13::timestamptz, CASE WHEN needs_approval THEN 'held' ELSE 'pending' END FROM made;

-- name: orphaned
-- What `tally recover` found at a provider without a row here: under one of these keys, or named after one of these.
SELECT asked.place
  FROM unnest($1::text[], $2::text[], $3::uuid[]) WITH ORDINALITY AS asked (p, r, subject, place)
 WHERE EXISTS (SELECT 1 FROM tally.orphan o WHERE o.provider = asked.p AND o.reference = asked.r)
    OR EXISTS (SELECT 1 FROM tally.orphan o WHERE o.subject = asked.subject);

-- name: ask_first
UPDATE tally.settlement_state s SET ask_first = true
  FROM unnest($1::integer[], $2::uuid[]) AS wanted (t, id)
  JOIN tally.settlement i ON i.tenant_id = wanted.t AND i.id = wanted.id
 WHERE s.tenant_id = i.tenant_id AND s.number = i.number AND s.status IN ('held', 'pending');

-- name: decided
SELECT r.tenant_id, r.key FROM unnest($1::integer[], $2::text[]) AS asked (t, k)
  JOIN tally.reply r ON r.key = asked.k AND r.tenant_id = asked.t;

-- name: by_ids
SELECT s.*, st.status, st.claim_number, st.processing_since, st.claimed_at, st.due_at, st.tries, st.transfer_id,
       st.reason, st.changed_at, st.claim_token, st.result_id, st.claimed_by, st.ask_first
  FROM unnest($1::integer[], $2::uuid[]) AS wanted (t, i)
 CROSS JOIN LATERAL (SELECT * FROM tally.settlement s WHERE s.tenant_id = wanted.t AND s.id = wanted.i OFFSET 0) AS s
 CROSS JOIN LATERAL (SELECT * FROM tally.settlement_state st
                      WHERE st.tenant_id = s.tenant_id AND st.number = s.number OFFSET 0) AS st;

-- name: by_transfer
SELECT s.id FROM tally.settlement_state st JOIN tally.settlement s USING (tenant_id, number)
 WHERE st.tenant_id = $1 AND st.transfer_id = $2 LIMIT 20;

-- name: list
-- Newest first, by the order of creation: a page never shifts.
SELECT s.*, st.status, st.claim_number, st.processing_since, st.claimed_at, st.due_at, st.tries, st.transfer_id,
       st.reason, st.changed_at, st.claim_token, st.result_id, st.claimed_by, st.ask_first
  FROM tally.settlement_state st
  JOIN tally.settlement s ON s.tenant_id = st.tenant_id AND s.number = st.number
 WHERE st.tenant_id = $1 AND st.number < $2 {filters}
 ORDER BY st.number DESC LIMIT $3;

-- name: events
SELECT e.at, e.what, e.by, e.body
  FROM tally.settlement_event e JOIN tally.settlement s ON s.tenant_id = e.tenant_id AND s.number = e.settlement
 WHERE s.tenant_id = $1 AND s.id = $2 ORDER BY e.number;

-- name: counts
SELECT name, sum(value)::bigint AS value FROM tally.settlement_count GROUP BY name ORDER BY name;

-- name: ages
SELECT provider, count(*) AS processing,
       extract(epoch FROM clock_timestamp() - min(processing_since))::float8 AS oldest_seconds
  FROM tally.settlement_state WHERE status = 'processing' GROUP BY provider;

-- name: waiting
-- How many are waiting, up to a bound: a gauge need not count a million.
SELECT (SELECT count(*) FROM (SELECT 1 FROM tally.settlement_state WHERE status = 'pending' LIMIT $1) AS p) AS pending,
       (SELECT count(*) FROM (SELECT 1 FROM tally.settlement_state WHERE status = 'disputed' LIMIT $1) AS d) AS disputed;

-- name: policy
SELECT currency, percent_ppm, fixed_micros, minimum_micros, changed_by, changed_at
  FROM tally.settlement_policy WHERE tenant_id = $1 ORDER BY currency;

-- name: put_policy
INSERT INTO tally.settlement_policy (tenant_id, currency, percent_ppm, fixed_micros, minimum_micros, changed_by)
VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (tenant_id, currency) DO UPDATE
   SET percent_ppm = excluded.percent_ppm, fixed_micros = excluded.fixed_micros,
       minimum_micros = excluded.minimum_micros, changed_by = excluded.changed_by, changed_at = now();
