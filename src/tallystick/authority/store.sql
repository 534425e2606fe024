-- name: lock_ceilings
-- In one order. What the day has can grow only under these locks, and is read from the rows as they were locked.
SELECT (l.line).tenant_id, (l.line).currency, (l.line).payout_micros, (l.line).day_micros, (l.line).second_person_micros,
       tally.authority_used_before(l.line, (clock_timestamp() AT TIME ZONE 'UTC')::date, 9223372036854775807) AS used_micros
  FROM (SELECT c AS line FROM tally.authority_ceiling c WHERE c.tenant_id = ANY($1::integer[]) AND NOT c.is_gone
         ORDER BY c.tenant_id, c.currency FOR NO KEY UPDATE) AS l;

-- name: known
SELECT d.tenant_id, d.provider, d.destination, d.added_at
  FROM unnest($1::integer[], $2::text[], $3::text[]) AS asked (t, p, destination)
  JOIN tally.destination d ON d.tenant_id = asked.t AND d.provider = asked.p
                          AND d.digest = sha256(convert_to(asked.destination, 'UTF8'))
 WHERE d.withdrawn_at IS NULL;

-- name: read
SELECT p.known_destinations, p.waiting_seconds, p.changed_by, p.changed_at,
       (SELECT coalesce(json_agg(json_build_object('currency', c.currency, 'payout_micros', c.payout_micros,
                                                   'day_micros', c.day_micros,
                                                   'second_person_micros', c.second_person_micros)
                                 ORDER BY c.currency), '[]')
          FROM tally.authority_ceiling c WHERE c.tenant_id = p.tenant_id AND NOT c.is_gone)::text AS ceilings
  FROM tally.authority_policy p WHERE p.tenant_id = $1;

-- name: put
INSERT INTO tally.authority_policy (tenant_id, known_destinations, waiting_seconds, changed_by) VALUES ($1, $2, $3, $4)
    ON CONFLICT (tenant_id) DO UPDATE
   SET known_destinations = excluded.known_destinations, waiting_seconds = excluded.waiting_seconds,
       changed_by = excluded.changed_by, changed_at = now();

-- name: put_ceilings
-- What the day has stays counted. A line that was taken away has missed what was promised meanwhile: it is summed up anew.
INSERT INTO tally.authority_ceiling AS c (tenant_id, currency, payout_micros, day_micros, second_person_micros)
SELECT $1, * FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) AS given (currency, payout, day, second)
 ORDER BY 2
    ON CONFLICT (tenant_id, currency) DO UPDATE
   SET payout_micros = excluded.payout_micros, day_micros = excluded.day_micros,
       second_person_micros = excluded.second_person_micros, is_gone = false,
       day = CASE WHEN c.is_gone THEN 'epoch' ELSE c.day END,
       used_micros = CASE WHEN c.is_gone THEN 0 ELSE c.used_micros END;

-- name: drop_ceilings
UPDATE tally.authority_ceiling SET is_gone = true
 WHERE tenant_id = $1 AND NOT is_gone AND currency <> ALL($2::text[]);

-- name: add_destination
-- One that is known stays known since then.
INSERT INTO tally.destination AS d (tenant_id, provider, digest, destination, added_by)
VALUES ($1, $2, sha256(convert_to($3, 'UTF8')), $3, $4)
    ON CONFLICT (tenant_id, provider, digest) DO UPDATE
   SET added_by = excluded.added_by, added_at = clock_timestamp(), withdrawn_at = NULL
 WHERE d.withdrawn_at IS NOT NULL;

-- name: withdraw_destination
UPDATE tally.destination SET withdrawn_at = clock_timestamp()
 WHERE tenant_id = $1 AND provider = $2 AND digest = sha256(convert_to($3, 'UTF8')) AND withdrawn_at IS NULL;

-- name: destination
SELECT d.provider, d.destination, d.added_by, d.added_at, d.withdrawn_at, d.number,
       d.added_at + make_interval(secs => coalesce(p.waiting_seconds, 0)) AS usable_at
  FROM tally.destination d LEFT JOIN tally.authority_policy p USING (tenant_id)
 WHERE d.tenant_id = $1 AND d.provider = $2 AND d.digest = sha256(convert_to($3, 'UTF8'));

-- name: destinations
SELECT d.provider, d.destination, d.added_by, d.added_at, d.withdrawn_at, d.number,
       d.added_at + make_interval(secs => coalesce(p.waiting_seconds, 0)) AS usable_at
  FROM tally.destination d LEFT JOIN tally.authority_policy p USING (tenant_id)
 WHERE d.tenant_id = $1 AND d.number < $2 ORDER BY d.number DESC LIMIT $3;

-- name: ask
INSERT INTO tally.approval (tenant_id, id, subject, action, generation, reason, evidence, asked_by)
SELECT t, id, subject, 'payout', 0, reason, '', asked_by
  FROM unnest($1::integer[], $2::uuid[], $3::uuid[], $4::text[], $5::text[]) AS asked (t, id, subject, reason, asked_by);

-- name: policy_of
SELECT tenant_id, known_destinations, waiting_seconds, clock_timestamp() AS now
  FROM tally.authority_policy WHERE tenant_id = $1 FOR SHARE;
