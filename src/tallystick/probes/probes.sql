-- name: triggers_off
SET LOCAL session_replication_role = replica;

-- name: age_intents
UPDATE tally.intent SET first_sent_at = first_sent_at - $1::interval;

-- name: age_attempts
UPDATE tally.attempt SET sent_at = sent_at - $1::interval, not_after = not_after - $1::interval,
                         answered_at = answered_at - $1::interval;

-- name: age_states
UPDATE tally.settlement_state SET claimed_at = claimed_at - $1::interval, due_at = due_at - $1::interval,
                                  processing_since = processing_since - $1::interval;

-- name: outcomes
SELECT s.attribution_id AS name, st.status, s.amount_micros / 10000 AS cents FROM tally.settlement s
  JOIN tally.settlement_state st USING (tenant_id, number);

-- name: set_pending
UPDATE tally.settlement_state st SET status = 'pending'
  FROM tally.settlement s
 WHERE s.attribution_id = ANY($1::text[]) AND st.tenant_id = s.tenant_id AND st.number = s.number;

-- name: set_untried
UPDATE tally.settlement_state st SET status = 'processing', claim_number = 0, tries = 0, due_at = 'epoch'
  FROM tally.settlement s
 WHERE s.attribution_id = ANY($1::text[]) AND st.tenant_id = s.tenant_id AND st.number = s.number;

-- name: other_key
UPDATE tally.settlement SET generation = generation + 1, key = sha256(key) WHERE attribution_id = ANY($1::text[]);

-- name: forget_attempts
DELETE FROM tally.attempt a USING tally.settlement s
 WHERE s.attribution_id = ANY($1::text[]) AND a.tenant_id = s.tenant_id AND a.key = s.key;

-- name: forget_intents
DELETE FROM tally.intent i USING tally.settlement s
 WHERE s.attribution_id = ANY($1::text[]) AND i.tenant_id = s.tenant_id AND i.key = s.key;

-- name: states
SELECT * FROM tally.settlement_state ORDER BY number;

-- name: postings
SELECT account_number, number, operation_id, amount_micros, balance_micros FROM tally.entry
 ORDER BY account_number, number;

-- name: first_attempts
SELECT answer, code FROM tally.attempt WHERE number = 1;

-- name: events
SELECT what FROM tally.settlement_event ORDER BY number;

-- name: renew_claims
UPDATE tally.settlement_state SET due_at = clock_timestamp() + interval '1 hour' WHERE status = 'processing';
