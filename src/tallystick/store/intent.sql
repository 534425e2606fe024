-- name: make
-- A new intent and its first attempt in one statement: nobody can have sent before. In the order of the primary key, so
-- that two batches wait for each other in one direction only. A second live key for one subject conflicts too
-- (one_live_key): it is not made, and its asker is told.
WITH asked AS (
    SELECT * FROM unnest($1::text::integer[], $2::text::text[], $3::bytea[], $4::text::text[], $5::bytea[],
                         $6::text::text[], $7::uuid[], $8::uuid[], $9::text::float8[]) WITH ORDINALITY
           AS asked (t, p, k, purpose, i, account, subject, token, seconds, place)
), made AS (
    INSERT INTO tally.intent (tenant_id, provider, key, purpose, instruction, account, subject, attempts)
    SELECT t, p, k, purpose, i, account, subject, 1 FROM asked ORDER BY t, k, p
        ON CONFLICT DO NOTHING
    RETURNING tenant_id, provider, key, first_sent_at
), begun AS (
    INSERT INTO tally.attempt (tenant_id, provider, key, number, token, sent_at, not_after)
    SELECT DISTINCT ON (m.tenant_id, m.key, m.provider) m.tenant_id, m.provider, m.key, 1, a.token, m.first_sent_at,
           m.first_sent_at + make_interval(secs => a.seconds)
      FROM made m JOIN asked a ON a.t = m.tenant_id AND a.k = m.key AND a.p = m.provider
     ORDER BY m.tenant_id, m.key, m.provider, a.place
    RETURNING tenant_id, provider, key, token, sent_at, not_after
)
SELECT tenant_id, provider, key, token, sent_at, not_after FROM begun;

-- name: lock
-- The lock keeps a second sender of the same intent behind this one until the attempt is committed.
SELECT i.tenant_id, i.provider, i.key, i.instruction, i.account, i.first_sent_at, i.attempts, i.ended,
       clock_timestamp() AS now
  FROM tally.intent i
  JOIN unnest($1::text::integer[], $2::text::text[], $3::bytea[]) AS asked (t, p, k)
    ON i.tenant_id = asked.t AND i.provider = asked.p AND i.key = asked.k
 ORDER BY i.tenant_id, i.key, i.provider
   FOR NO KEY UPDATE OF i;

-- name: settle_answers
-- An answer that is being recorded at this moment must be seen: who was done is never sent again.
SELECT 1 FROM tally.attempt a
  JOIN unnest($1::text::integer[], $2::text::text[], $3::bytea[]) AS asked (t, p, k)
    ON a.tenant_id = asked.t AND a.provider = asked.p AND a.key = asked.k
 ORDER BY a.tenant_id, a.key, a.provider, a.number
   FOR NO KEY UPDATE OF a;

-- name: last_attempts
-- After the locks and in a statement of its own: it must see what the sender before us committed.
SELECT a.tenant_id, a.provider, a.key, a.number, a.token, a.not_after, a.answer IS NOT NULL AS is_answered,
       clock_timestamp() AS now, of_all.may_have_run, of_all.done_as
  FROM tally.attempt a
 CROSS JOIN LATERAL (
        SELECT bool_or(b.answer IS NULL OR b.answer = 'unknown') AS may_have_run,
               max(b.provider_id) FILTER (WHERE b.answer = 'done') AS done_as
          FROM tally.attempt b
         WHERE b.tenant_id = a.tenant_id AND b.provider = a.provider AND b.key = a.key) AS of_all
  JOIN unnest($1::text::integer[], $2::text::text[], $3::bytea[], $4::text::integer[]) AS asked (t, p, k, n)
    ON a.tenant_id = asked.t AND a.provider = asked.p AND a.key = asked.k AND a.number = asked.n;

-- name: begin
WITH begun AS (
    INSERT INTO tally.attempt (tenant_id, provider, key, number, token, sent_at, not_after)
    SELECT t, p, k, n, token, $7::timestamptz, $7::timestamptz + make_interval(secs => seconds)
      FROM unnest($1::text::integer[], $2::text::text[], $3::bytea[], $4::text::integer[], $5::uuid[],
                  $6::text::float8[])
           AS asked (t, p, k, n, token, seconds)
    RETURNING tenant_id, provider, key, number
)
UPDATE tally.intent i SET attempts = begun.number
  FROM begun
 WHERE i.tenant_id = begun.tenant_id AND i.provider = begun.provider AND i.key = begun.key;

-- name: answer
-- Only where there is no answer yet: a second run after a lost COMMIT changes nothing.
UPDATE tally.attempt a
   SET answered_at = clock_timestamp(), answer = given.answer, code = given.code, provider_id = given.provider_id,
       evidence = given.evidence, server_error = given.server_error, state = given.state
  FROM unnest($1::text::integer[], $2::text::text[], $3::bytea[], $4::text::integer[], $5::text::text[],
              $6::text::text[], $7::text::text[], $8::bytea[], $9::text::boolean[], $10::text::text[])
       AS given (t, p, k, n, answer, code, provider_id, evidence, server_error, state)
 WHERE a.tenant_id = given.t AND a.provider = given.p AND a.key = given.k AND a.number = given.n
   AND a.answer IS NULL
RETURNING a.tenant_id, a.provider, a.key, a.number;

-- name: answers
SELECT a.tenant_id, a.provider, a.key, a.number, a.answer, a.code, a.provider_id
  FROM tally.attempt a
  JOIN unnest($1::text::integer[], $2::text::text[], $3::bytea[], $4::text::integer[]) AS asked (t, p, k, n)
    ON a.tenant_id = asked.t AND a.provider = asked.p AND a.key = asked.k AND a.number = asked.n;

-- name: explain
SELECT i.provider, i.purpose, i.account, i.instruction, i.first_sent_at, a.number, a.sent_at, a.not_after, a.answered_at,
       a.answer, a.code, a.provider_id, a.evidence
  FROM tally.intent i LEFT JOIN tally.attempt a USING (tenant_id, provider, key)
 WHERE i.tenant_id = $1 AND i.key = $2
 ORDER BY i.provider, a.number;

-- name: breaker_changed
INSERT INTO tally.breaker (provider, process, state, reason) VALUES ($1, $2, $3, $4)
    ON CONFLICT (provider, process) DO UPDATE
   SET state = excluded.state, reason = excluded.reason, changed_at = excluded.changed_at;

-- name: breaker_gone
DELETE FROM tally.breaker WHERE process = $1;

-- name: breakers
SELECT provider, process, state, reason, changed_at FROM tally.breaker ORDER BY provider, changed_at;
