-- name: append
-- One statement for many events, and so one round trip: the guard decides which are new, and only those are stored. In the
-- order of the keys, so that two batches wait for each other in one direction only; who meets a key that another
-- transaction is writing waits for its end, so a repetition is never acknowledged before the first telling is durable.
-- Columns of text come joined ($1 to $12), and the bodies as one, with the first byte and the length of each: the driver
-- would take longer over the elements of arrays than all else takes. Texts are one element longer than the rest, because a
-- single empty text would be an array of nothing.
WITH given AS MATERIALIZED (
    SELECT nextval('tally.webhook_number') AS number, g.*
      FROM unnest(string_to_array($1, E'\x1e'), string_to_array($2, E'\x1e'), string_to_array($3, E'\x1e'),
                  string_to_array($4, E'\x1e', E'\x1d'), string_to_array($5, E'\x1e', E'\x1d'),
                  string_to_array($6, E'\x1e', E'\x1d'), string_to_array($7, E'\x1e', E'\x1d'),
                  string_to_array($8, E'\x1e', E'\x1d'), string_to_array($9, E'\x1e', E'\x1d'),
                  string_to_array($10, E'\x1e', E'\x1d'), string_to_array($11, E'\x1e', E'\x1d'),
                  string_to_array($12, E'\x1e', E'\x1d'), $13::text::bigint[], $14::text::bigint[],
                  $15::text::integer[], $16::text::integer[])
           WITH ORDINALITY
           AS g (provider, event_id, type, purpose, provider_id, reference, parent, currency, state, word, object_id,
                 object_purpose, amount_micros, occurred, first, length, position)
     WHERE g.length IS NOT NULL
), fresh AS (
    INSERT INTO tally.webhook_guard (provider, dedup_key, number)
    SELECT provider, event_id, number FROM given
    ON CONFLICT DO NOTHING
    RETURNING number
), stored AS (
    -- What tells of no movement and names none concerns nobody: it is done.
    INSERT INTO tally.webhook_events (number, provider, event_id, type, purpose, provider_id, reference, parent, currency,
                                      state, word, object_id, object_purpose, amount_micros, occurred_at, received_at,
                                      due_at, status, processed_at)
    SELECT number, provider, event_id, type, purpose, provider_id, reference, parent, currency, state, word, object_id,
           object_purpose, amount_micros, timestamptz '2000-01-01 00:00:00Z' + occurred * interval '1 microsecond',
           statement_timestamp(), statement_timestamp(),
           CASE WHEN purpose IS NULL AND object_purpose IS NULL THEN 'PROCESSED_OK' ELSE 'UNPROCESSED' END,
           CASE WHEN purpose IS NULL AND object_purpose IS NULL THEN statement_timestamp() END
      FROM fresh JOIN given USING (number)
), bodies AS (
    INSERT INTO tally.webhook_body (received_at, number, body)
    SELECT statement_timestamp(), number, substring($17::bytea FROM first FOR length) FROM fresh JOIN given USING (number)
)
-- The repetitions: there are fewer of them to tell of.
SELECT position FROM given WHERE NOT EXISTS (SELECT FROM fresh WHERE fresh.number = given.number);

-- name: finish
-- The row is found by its primary key; written so (status || '') that no plan takes the partial index for it.
UPDATE tally.webhook_events e
   SET status = mine.status, processing_until = NULL, tries = mine.tries, reason = mine.reason,
       processed_at = CASE WHEN mine.status IN ('PROCESSED_OK', 'PROCESSED_COMPENSATED') THEN clock_timestamp() END,
       due_at = CASE mine.status WHEN 'UNPROCESSED' THEN clock_timestamp() + mine.after * interval '1 second'
                     ELSE e.due_at END
  FROM unnest($1::text::bigint[], $2::text::integer[], $3::text::text[], $4::text::integer[], $5::text::text[],
              $6::text::float8[])
       AS mine (n, claim, status, tries, reason, after)
 WHERE e.number = mine.n AND e.claim_number = mine.claim AND e.status || '' = 'IN_PROCESSING'
RETURNING e.number;

-- name: hold
-- Those that are still under their claims, and stay so until this transaction ends.
SELECT e.number
  FROM unnest($1::text::bigint[], $2::text::integer[]) AS mine (n, claim)
 CROSS JOIN LATERAL (SELECT * FROM tally.webhook_events e
                      WHERE e.number = mine.n AND e.claim_number = mine.claim AND e.status || '' = 'IN_PROCESSING'
                        FOR NO KEY UPDATE) AS e;
