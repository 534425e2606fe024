-- name: plain_session
SET TIME ZONE 'UTC';

-- name: odd_session
SET TIME ZONE 'Asia/Kolkata';
SET datestyle = 'German';
SET bytea_output = 'escape';
SET extra_float_digits = -15;
SET search_path = pg_temp, public;
SET standard_conforming_strings = on;
SET lc_numeric = 'C';

-- name: keys
SELECT encode(tally.settlement_key(payout ->> 'tenant',
                                   jsonb_populate_record(NULL::tally.settlement, payout)), 'hex') AS key
  FROM jsonb_array_elements($1::jsonb) WITH ORDINALITY AS given (payout, position) ORDER BY position;
