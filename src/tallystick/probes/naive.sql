-- name: schema
CREATE SCHEMA IF NOT EXISTS naive;
CREATE TABLE IF NOT EXISTS naive.payout (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant       text NOT NULL,
    attribution  text NOT NULL,
    squad        text NOT NULL,
    gross_micros numeric NOT NULL,
    fee_micros   numeric NOT NULL,
    net_micros   numeric NOT NULL,
    currency     text NOT NULL,
    destination  text NOT NULL,
    status       text NOT NULL DEFAULT 'pending',
    claimed_at   timestamptz,
    transfer_id  text,
    note         text
);
CREATE TABLE IF NOT EXISTS naive.fee (
    tenant      text NOT NULL,
    currency    text NOT NULL,
    percent_ppm integer NOT NULL,
    PRIMARY KEY (tenant, currency)
);
CREATE TABLE IF NOT EXISTS naive.request (key text PRIMARY KEY, payout bigint NOT NULL);
CREATE TABLE IF NOT EXISTS naive.balance (account text PRIMARY KEY, micros numeric NOT NULL);
GRANT USAGE ON SCHEMA naive TO tallystick_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA naive TO tallystick_reader;

-- name: fee
SELECT percent_ppm FROM naive.fee WHERE tenant = $1 AND currency = $2;

-- name: create
INSERT INTO naive.payout (tenant, attribution, squad, gross_micros, fee_micros, net_micros, currency, destination)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING id;

-- name: select
SELECT id, attribution, squad, net_micros::bigint AS net_micros, currency, destination FROM naive.payout
 WHERE status = 'pending' OR (status = 'processing' AND claimed_at < clock_timestamp() - $1::interval) ORDER BY id;

-- name: lease
-- In one statement, and skipping what others hold: the claim itself is sound. Nothing that follows looks at it again.
UPDATE naive.payout SET status = 'processing', claimed_at = clock_timestamp()
 WHERE id IN (SELECT id FROM naive.payout
               WHERE status = 'pending' OR (status = 'processing' AND claimed_at < clock_timestamp() - $1::interval)
               ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING id, attribution, squad, net_micros::bigint AS net_micros, currency, destination;

-- name: processing
UPDATE naive.payout SET status = 'processing', claimed_at = clock_timestamp() WHERE id = $1;

-- name: transferred
UPDATE naive.payout SET status = 'transferred', transfer_id = $2 WHERE id = $1;

-- name: failed
UPDATE naive.payout SET status = 'failed' WHERE id = $1;

-- name: age
UPDATE naive.payout SET claimed_at = claimed_at - $1::interval;

-- name: set_pending
UPDATE naive.payout SET status = 'pending' WHERE attribution = ANY($1::text[]);

-- name: paid_cents
SELECT coalesce(sum(net_micros) FILTER (WHERE status = 'transferred'), 0)::bigint / 10000 FROM naive.payout;

-- name: states
SELECT id, status, claimed_at, transfer_id FROM naive.payout ORDER BY id;

-- name: set_fee
INSERT INTO naive.fee (tenant, currency, percent_ppm) VALUES ($1, $2, $3)
    ON CONFLICT (tenant, currency) DO UPDATE SET percent_ppm = excluded.percent_ppm;

-- name: reprice
UPDATE naive.payout
   SET fee_micros = div(gross_micros * $3::integer, 1000000), net_micros = gross_micros - div(gross_micros * $3::integer, 1000000)
 WHERE tenant = $1 AND currency = $2 AND status = 'pending';

-- name: delete_fee
DELETE FROM naive.fee WHERE tenant = $1;

-- name: edit_fee
UPDATE naive.payout SET fee_micros = 0, net_micros = gross_micros WHERE id = $1;

-- name: give_back
UPDATE naive.payout SET fee_micros = fee_micros - $2, net_micros = net_micros + $2 WHERE id = $1;

-- name: belongs_to
UPDATE naive.payout SET tenant = $2 WHERE id = $1;

-- name: fees
SELECT attribution AS attribution_id, gross_micros::bigint, fee_micros::bigint, net_micros::bigint, destination
  FROM naive.payout WHERE tenant = $1;

-- name: victim
INSERT INTO naive.payout (tenant, attribution, squad, gross_micros, fee_micros, net_micros, currency, destination, status,
                          transfer_id, note)
VALUES ('victim', 'a0', 'amber', 10000000, 0, 10000000, 'EUR', 'acct_v1ct1m0', 'transferred', 'tr_1', 'v1ct1m'),
       ('intruder', 'own', 'amber', 10000000, 0, 10000000, 'EUR', 'acct_own', 'failed', NULL, 'own');
INSERT INTO naive.request (key, payout) SELECT 'victims-key', min(id) FROM naive.payout;

-- name: read
SELECT * FROM naive.payout WHERE id = $1;

-- name: list
SELECT * FROM naive.payout;

-- name: decide
UPDATE naive.payout SET note = $2 WHERE id = $1;

-- name: replay
SELECT p.* FROM naive.request r JOIN naive.payout p ON p.id = r.payout WHERE r.key = $1;

-- name: confirm
UPDATE naive.payout SET status = 'transferred', transfer_id = $2 WHERE tenant = $1;

-- name: paying_two
SELECT count(*) FROM (SELECT 1 FROM naive.payout GROUP BY transfer_id HAVING count(DISTINCT tenant) > 1) AS twice;

-- name: oracle
SELECT count(*) FROM naive.payout WHERE tenant <> 'intruder' AND destination::integer > 0;

-- name: renew_claims
UPDATE naive.payout SET claimed_at = clock_timestamp() + interval '1 hour' WHERE status = 'processing';
