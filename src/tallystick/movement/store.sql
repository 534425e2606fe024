-- name: make
-- A new intent and its first attempt in one statement. In the order of the primary key, so that two batches wait for each
-- other in one direction only. A second live key for one subject conflicts too (one_live_key): it is not made, and its
-- asker is told. Where the provider may no longer remember the key, the intent alone is made: whether its first
-- attempt may begin is asked like that of any further one (movement.rules).
-- since: what a lost life may have asked for already is as old as that life, also once the books are read; so is what they
-- showed under this key.
WITH asked AS (
    SELECT * FROM unnest($1::text::integer[], $2::text::text[], $3::bytea[], $4::text::text[], $5::bytea[],
                         $6::text::text[], $7::uuid[], $8::uuid[], $9::text::float8[], $10::text::text[],
                         $11::timestamptz[], $12::text::float8[], $13::text::text[]) WITH ORDINALITY
           AS asked (t, p, k, purpose, i, account, subject, token, seconds, author, since, remembered, mark, place)
), unread AS MATERIALIZED (
    SELECT u.p, (tally.unread(u.p)).known_until FROM (SELECT DISTINCT p FROM asked) AS u
), made AS (
    INSERT INTO tally.intent (tenant_id, provider, key, purpose, instruction, account, subject, since, mark, attempts)
    SELECT t, p, k, purpose, i, account, subject, born, mark,
           (clock_timestamp() < born + make_interval(secs => remembered)
            AND clock_timestamp() > since - interval '1 minute'
            -- Nor while a life may have been lost and the provider's books are unread.
            AND known_until IS NULL)::integer
      FROM asked JOIN unread USING (p)
     CROSS JOIN LATERAL (SELECT least(since, known_until, (
            SELECT CASE WHEN k <= o.key_to THEN o.made_at END
              FROM tally.orphan o WHERE o.provider = p AND o.key_from <= k
             ORDER BY o.key_from DESC LIMIT 1)) AS born) AS b
     ORDER BY t, k, p
        ON CONFLICT DO NOTHING
    RETURNING tenant_id, provider, key, first_sent_at, attempts, mark
), begun AS (
    INSERT INTO tally.attempt (tenant_id, provider, key, number, token, sent_at, not_after, author)
    SELECT DISTINCT ON (m.tenant_id, m.key, m.provider) m.tenant_id, m.provider, m.key, 1, a.token, m.first_sent_at,
           m.first_sent_at + make_interval(secs => a.seconds), a.author
      FROM made m JOIN asked a ON a.t = m.tenant_id AND a.k = m.key AND a.p = m.provider
     WHERE m.attempts = 1
     ORDER BY m.tenant_id, m.key, m.provider, a.place
    RETURNING tenant_id, provider, key, token, sent_at, not_after
)
SELECT b.tenant_id, b.provider, b.key, b.token, b.sent_at, b.not_after, m.mark, tally.installation_id() AS installation
  FROM begun b JOIN made m USING (tenant_id, provider, key);

-- name: lock
-- The lock keeps a second sender of the same intent behind this one until the attempt is committed.
SELECT i.tenant_id, i.provider, i.key, i.instruction, i.account, i.since, i.first_sent_at, i.attempts, i.ended, i.mark,
       tally.installation_id() AS installation, greatest(u.began_at, w.confirmed_at) AS life_began, u.known_until,
       tally.is_stopped(i.provider) AS is_stopped, clock_timestamp() AS now
  FROM tally.whereabouts w CROSS JOIN tally.intent i
 CROSS JOIN LATERAL tally.unread(i.provider) AS u
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
-- Within an intent time never goes back, also when the clock does: after an attempt that a clock ahead has dated, the next
-- goes on where its permit ended. $9: no permit is longer.
WITH begun AS (
    INSERT INTO tally.attempt (tenant_id, provider, key, number, token, sent_at, not_after, author)
    SELECT t, p, k, n, token, sent_at, sent_at + make_interval(secs => seconds), author
      FROM unnest($1::text::integer[], $2::text::text[], $3::bytea[], $4::text::integer[], $5::uuid[],
                  $6::text::float8[], $8::text::text[])
           AS asked (t, p, k, n, token, seconds, author)
     CROSS JOIN LATERAL (SELECT greatest($7::timestamptz, max(b.not_after) FILTER (
                                    WHERE b.not_after > $7::timestamptz + $9::interval)) AS sent_at
                           FROM tally.attempt b
                          WHERE b.tenant_id = asked.t AND b.provider = asked.p AND b.key = asked.k) AS latest
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

-- name: attempts
SELECT attempts FROM tally.intent WHERE tenant_id = $1 AND provider = $2 AND key = $3;

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

-- name: histories
SELECT i.tenant_id, i.key, i.account, i.first_sent_at, max(a.not_after) AS not_after, clock_timestamp() AS now,
       bool_or(a.answer IS NULL OR a.answer = 'unknown') AS may_have_run,
       coalesce(bool_or(a.answer IS NULL) FILTER (WHERE a.number = i.attempts), false) AS is_silent,
       bool_or(a.server_error) AS server_error, max(a.provider_id) FILTER (WHERE a.answer = 'done') AS done_as,
       -- Answers of one movement may be of different days: that it came back is the later news.
       CASE WHEN bool_or(a.state = 'returned') THEN 'returned' WHEN bool_or(a.state = 'failed') THEN 'failed'
            ELSE max(a.state) END AS done_state,
       (array_agg(a.code ORDER BY a.number DESC) FILTER (WHERE a.answer = 'refused'))[1] AS refused_as
  FROM unnest($1::integer[], $2::bytea[]) AS wanted (t, k)
 CROSS JOIN LATERAL (SELECT * FROM tally.intent i
                      WHERE i.tenant_id = wanted.t AND i.key = wanted.k AND i.provider = $3 OFFSET 0) AS i
 CROSS JOIN LATERAL (SELECT * FROM tally.attempt a
                      WHERE a.tenant_id = i.tenant_id AND a.key = i.key AND a.provider = i.provider OFFSET 0) AS a
 GROUP BY i.tenant_id, i.key, i.account, i.first_sent_at;
