-- name: prepare
-- The memory of one run, on its own connection: a list of millions does not fit into ours.
-- What the provider listed, each once: pages may overlap.
CREATE TEMP TABLE listed (provider_id text COLLATE "C" PRIMARY KEY);
-- Which settlements it showed, and as what. is_away: it did not fail, nor come back. is_told: as one too many.
CREATE TEMP TABLE shown (
    tenant_id   integer NOT NULL,
    number      bigint NOT NULL,
    provider_id text COLLATE "C" NOT NULL,
    is_away     boolean NOT NULL,
    is_told     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, number, provider_id)
);
-- Which ones it should have shown.
CREATE TEMP TABLE expected (tenant_id integer NOT NULL, number bigint NOT NULL, PRIMARY KEY (tenant_id, number));

-- name: forget
TRUNCATE pg_temp.listed, pg_temp.shown, pg_temp.expected;

-- name: now
SELECT clock_timestamp();

-- name: list
INSERT INTO pg_temp.listed SELECT DISTINCT * FROM unnest($1::text[]) ON CONFLICT DO NOTHING RETURNING provider_id;

-- name: by_transfer
SELECT asked.id AS provider_id, st.tenant_id, s.id, s.key
  FROM unnest($2::text[]) AS asked (id)
  JOIN tally.settlement_state st ON st.transfer_id = asked.id AND st.provider = $1
  JOIN tally.settlement s ON s.tenant_id = st.tenant_id AND s.number = st.number;

-- name: by_key
-- Of any tenant and generation. Some providers keep only a part of the key: the caller compares the rest.
SELECT asked.place, t.tenant_id, k.key, k.subject
  FROM unnest($2::bytea[], $3::bytea[]) WITH ORDINALITY AS asked (low, high, place)
 CROSS JOIN tally.tenant t
 CROSS JOIN LATERAL (
        SELECT i.key, i.subject FROM tally.intent i
         WHERE i.tenant_id = t.tenant_id AND i.key BETWEEN asked.low AND asked.high AND i.provider = $1
         UNION ALL
        SELECT s.key, s.id FROM tally.settlement s
         WHERE s.tenant_id = t.tenant_id AND s.key BETWEEN asked.low AND asked.high AND s.provider = $1) AS k;

-- name: rows
SELECT s.tenant_id, t.name AS tenant, s.number, s.id, s.key, s.destination, s.amount_micros, s.currency, st.status,
       st.transfer_id, st.reason, st.changed_at, i.account, i.first_sent_at, sent.not_after
  FROM unnest($1::integer[], $2::uuid[]) AS wanted (t, id)
  JOIN tally.settlement s ON s.tenant_id = wanted.t AND s.id = wanted.id
  JOIN tally.settlement_state st ON st.tenant_id = s.tenant_id AND st.number = s.number
  JOIN tally.tenant t ON t.tenant_id = s.tenant_id
  LEFT JOIN tally.intent i ON i.tenant_id = s.tenant_id AND i.key = s.key AND i.provider = s.provider
 CROSS JOIN LATERAL (SELECT max(a.not_after) AS not_after FROM tally.attempt a
                      WHERE a.tenant_id = i.tenant_id AND a.key = i.key AND a.provider = i.provider) AS sent;

-- name: show
INSERT INTO pg_temp.shown (tenant_id, number, provider_id, is_away)
SELECT * FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::boolean[]) ON CONFLICT DO NOTHING;

-- name: expect_sent
-- By when it was sent: when it was recorded, or created, says little of when the provider made it. LIMIT 1 keeps the
-- planner at one look into an index for each: it would rather read the whole of a table of millions.
INSERT INTO pg_temp.expected
SELECT a.tenant_id, s.number
  FROM tally.attempt a
 CROSS JOIN LATERAL (SELECT i.subject FROM tally.intent i
                      WHERE i.tenant_id = a.tenant_id AND i.key = a.key AND i.provider = a.provider LIMIT 1) AS i
 CROSS JOIN LATERAL (SELECT s.number FROM tally.settlement s
                      WHERE s.tenant_id = a.tenant_id AND s.id = i.subject AND s.key = a.key LIMIT 1) AS s
 CROSS JOIN LATERAL (SELECT st.status FROM tally.settlement_state st
                      WHERE st.tenant_id = a.tenant_id AND st.number = s.number LIMIT 1) AS st
 WHERE a.provider = $1 AND a.sent_at >= $2 AND a.sent_at < $3 AND st.status = 'transferred'
    ON CONFLICT DO NOTHING;

-- name: expect_unsent
-- Transferred without a send that is known here (found after a restore, or confirmed by a person): by its creation.
INSERT INTO pg_temp.expected
SELECT s.tenant_id, s.number
  FROM tally.settlement s
 CROSS JOIN LATERAL (SELECT st.status FROM tally.settlement_state st
                      WHERE st.tenant_id = s.tenant_id AND st.number = s.number LIMIT 1) AS st
 WHERE s.provider = $1 AND s.created_at >= $2 AND s.created_at < $3 AND st.status = 'transferred'
   AND (SELECT i.key FROM tally.intent i
         WHERE i.tenant_id = s.tenant_id AND i.subject = s.id AND NOT i.ended LIMIT 1) IS NULL
    ON CONFLICT DO NOTHING;

-- name: unshown
-- Still transferred, and not shown under the id it was recorded with. One that is away under another id is not missing:
-- that it moved otherwise than recorded was told with that movement.
SELECT e.tenant_id, e.number, s.id
  FROM pg_temp.expected e
  JOIN tally.settlement s ON s.tenant_id = e.tenant_id AND s.number = e.number
  JOIN tally.settlement_state st ON st.tenant_id = e.tenant_id AND st.number = e.number
 WHERE (e.tenant_id, e.number) > ($1, $2) AND st.status = 'transferred'
   AND NOT EXISTS (SELECT 1 FROM pg_temp.shown h
                    WHERE h.tenant_id = e.tenant_id AND h.number = e.number
                      AND (h.provider_id = st.transfer_id OR h.is_away))
 ORDER BY e.tenant_id, e.number LIMIT $3;

-- name: told
UPDATE pg_temp.shown SET is_told = true WHERE tenant_id = $1 AND number = $2;

-- name: doubles
SELECT h.tenant_id, h.number, s.id, h.ids
  FROM (SELECT tenant_id, number, array_agg(provider_id ORDER BY provider_id) AS ids
          FROM pg_temp.shown WHERE is_away AND NOT is_told AND (tenant_id, number) > ($1, $2)
         GROUP BY tenant_id, number HAVING count(*) > 1) AS h
  JOIN tally.settlement s ON s.tenant_id = h.tenant_id AND s.number = h.number
 ORDER BY h.tenant_id, h.number LIMIT $3;

-- name: providers
-- Every provider that ever had a payout, by the accounts that its payouts made.
SELECT DISTINCT split_part(a.id, ':', 4) AS provider
  FROM tally.tenant t
  JOIN tally.account a ON a.tenant_id = t.tenant_id AND a.id >= 'settlement:paid_out:' AND a.id < 'settlement:paid_out;'
 ORDER BY 1;

-- name: lock
SELECT status, reason, transfer_id FROM tally.settlement_state
 WHERE tenant_id = $1 AND number = $2 FOR NO KEY UPDATE;

-- name: is_noted
SELECT EXISTS (SELECT 1 FROM tally.settlement_event
                WHERE tenant_id = $1 AND settlement = $2 AND what = $3 AND body = $4);
