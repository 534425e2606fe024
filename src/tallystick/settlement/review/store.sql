-- name: lock
-- Both halves of the row: a new generation changes what the settlement is, every decision how it stands.
SELECT s.*, st.status, st.claim_number, st.processing_since, st.claimed_at, st.due_at, st.tries, st.transfer_id,
       st.reason, st.changed_at, st.claim_token, st.result_id, st.claimed_by, st.ask_first,
       EXISTS (SELECT 1 FROM tally.attempt a
                WHERE a.tenant_id = s.tenant_id AND a.key = s.key AND a.provider = s.provider AND a.answer = 'done')
           AS was_done,
       EXISTS (SELECT 1 FROM tally.approval p
                WHERE p.tenant_id = s.tenant_id AND p.subject = s.id AND p.decision = 'approved'
                  AND p.action IN ('payout', 'new_generation')) AS was_approved,
       -- Of this generation: what came back before the last approval says nothing of what was sent after it.
       EXISTS (SELECT 1 FROM tally.settlement_event e
                WHERE e.tenant_id = s.tenant_id AND e.settlement = s.number
                  AND e.what IN ('came_back', 'missing_there')
                  AND e.number > (SELECT coalesce(max(a.number), 0) FROM tally.settlement_event a
                                   WHERE a.tenant_id = s.tenant_id AND a.settlement = s.number
                                     AND a.what = 'generation_approved')) AS came_back
  FROM tally.settlement s
  JOIN tally.settlement_state st ON st.tenant_id = s.tenant_id AND st.number = s.number
 WHERE s.tenant_id = $1 AND s.id = $2
   FOR NO KEY UPDATE OF st, s;

-- name: decide
-- The claim number goes up: a worker that still holds an older claim can no longer write.
UPDATE tally.settlement_state
   SET status = $3, reason = $4, transfer_id = coalesce($5, transfer_id), result_id = $6,
       claim_number = claim_number + 1, changed_at = clock_timestamp(),
       due_at = CASE WHEN $3 = 'processing' THEN clock_timestamp() ELSE due_at END,
       claimed_at = CASE WHEN $3 = 'processing' THEN clock_timestamp() ELSE claimed_at END,
       processing_since = CASE WHEN $3 = 'processing' THEN clock_timestamp() ELSE processing_since END,
       -- A person may be wrong, or late: what is tried again is asked about first.
       ask_first = ask_first OR $3 = 'processing',
       tries = CASE WHEN $3 IN ('processing', 'pending') THEN 0 ELSE tries END
 WHERE tenant_id = $1 AND number = $2;

-- name: end_key
UPDATE tally.intent SET ended = true WHERE tenant_id = $1 AND subject = $2 AND NOT ended;

-- name: renew
UPDATE tally.settlement SET generation = $3, key = $4 WHERE tenant_id = $1 AND number = $2;

-- name: begin_anew
UPDATE tally.settlement_state
   SET transfer_id = NULL,
       ask_first = EXISTS (SELECT 1 FROM tally.orphan o WHERE o.provider = $3 AND o.reference = ANY($4::text[]))
                   OR EXISTS (SELECT 1 FROM tally.whereabouts w WHERE w.database = 0)
 WHERE tenant_id = $1 AND number = $2;

-- name: by_reference
-- Everything that a provider's reference or id could mean, of any tenant and generation. $2 and $3 bound the key: some
-- providers keep only a part of it, and the caller compares the rest.
SELECT s.tenant_id, t.name AS tenant, s.id, i.key, s.destination
  FROM tally.tenant t
  JOIN tally.intent i ON i.tenant_id = t.tenant_id AND i.key BETWEEN $2 AND $3 AND i.provider = $1
  JOIN tally.settlement s ON s.tenant_id = i.tenant_id AND s.id = i.subject
 UNION
SELECT s.tenant_id, t.name, s.id, s.key, s.destination
  FROM tally.tenant t
  JOIN tally.settlement s ON s.tenant_id = t.tenant_id AND s.key BETWEEN $2 AND $3 AND s.provider = $1;

-- name: by_transfer
SELECT s.tenant_id, t.name AS tenant, s.id, s.key
  FROM tally.settlement_state st
  JOIN tally.settlement s ON s.tenant_id = st.tenant_id AND s.number = st.number
  JOIN tally.tenant t ON t.tenant_id = s.tenant_id
 WHERE st.transfer_id = $2 AND st.provider = $1;

-- name: hold_transfer
-- Two who confirm with the same id, at the same time, must see each other.
SELECT pg_advisory_xact_lock(hashtext($1::text), hashtext($2::text));

-- name: is_taken
SELECT EXISTS (SELECT 1 FROM tally.settlement_state
                WHERE transfer_id = $2 AND provider = $1 AND status IN ('transferred', 'disputed')
                  AND (tenant_id, number) <> ($3::integer, $4::bigint));
