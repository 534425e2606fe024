-- A charge is live while it could be paid at the provider: PENDING, COMPLETED, or refused and left open there for another
-- card (is_confirmable).

-- name: hold
-- Overdue, charged, and a charge of it is live: it waits here until what stands at the provider is ended. $2: the watermark.
INSERT INTO tally.order_hold (tenant_id, order_id)
SELECT o.tenant_id, o.id
  FROM (SELECT o.tenant_id, o.id FROM tally.orders o
         WHERE o.status = 'PENDING' AND o.expires_at < least(statement_timestamp(), $2::timestamptz) - $1::interval
           AND EXISTS (SELECT 1 FROM (SELECT 1 FROM tally.payment_idempotency_log l
                                       WHERE l.operation_type = 'CHARGE' AND (l.status <> 'FAILED' OR l.is_confirmable)
                                         AND l.order_id = o.id AND l.tenant_id = o.tenant_id OFFSET 0) AS l)
           AND NOT EXISTS (SELECT 1 FROM (SELECT 1 FROM tally.order_hold h
                                           WHERE h.order_id = o.id AND h.tenant_id = o.tenant_id OFFSET 0) AS h)
         ORDER BY o.expires_at LIMIT $3) AS o
    ON CONFLICT DO NOTHING;

-- name: claim
-- What is due, by the database's clock: orders that wait to be swept, and those that were swept before anybody answered. So
-- many of each: neither keeps the other waiting. SKIP LOCKED: two sweepers never ask about the same one at once. A hold from
-- the future was dated by a clock that was ahead: it counts from now.
-- Of several live charges the oldest first: the last of them is the newest. One whose money has come has a receipt: whatever
-- became of that, nothing of it is left to end, and it keeps neither its order nor another charge waiting.
-- since: how far back a life of the database that was lost may have charged it (as in payment.sql); settled_from: since when
-- nobody but this very database can have.
WITH claimed AS (
    UPDATE tally.order_hold h
       SET claim_number = h.claim_number + 1, due_at = clock_timestamp() + $2::interval,
           held_since = least(h.held_since, clock_timestamp())
     WHERE h.ctid = ANY (ARRAY(SELECT ctid FROM tally.order_hold
                                WHERE verdict IS NULL AND due_at <= statement_timestamp()
                                ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED)
                      || ARRAY(SELECT ctid FROM tally.order_hold
                                WHERE verdict IN ('given_up', 'absent') AND closed_as IS NULL
                                  AND due_at <= statement_timestamp()
                                ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING h.*
)
SELECT h.tenant_id, h.order_id, h.claim_number, h.held_since, h.tries, h.verdict, t.name AS tenant, o.id,
       o.status AS order_status, o.reservation_token, o.amount_micros, o.currency, o.created_at, o.expires_at,
       l.idempotency_key, l.attempt, l.provider, l.status, l.payment_intent_id, l.live, i.instruction,
       least(o.created_at, i.since, i.first_sent_at, u.known_until) AS since,
       greatest(u.began_at, w.confirmed_at) AS settled_from, clock_timestamp() AS now
  FROM claimed h
 CROSS JOIN tally.whereabouts w
 CROSS JOIN LATERAL (SELECT * FROM tally.orders o WHERE o.tenant_id = h.tenant_id AND o.id = h.order_id OFFSET 0) AS o
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = h.tenant_id OFFSET 0) AS t
  LEFT JOIN LATERAL (SELECT l.*, count(*) OVER () AS live FROM tally.payment_idempotency_log l
                      WHERE l.operation_type = 'CHARGE' AND (l.status <> 'FAILED' OR l.is_confirmable)
                        AND l.order_id = h.order_id AND l.tenant_id = h.tenant_id
                        AND NOT EXISTS (SELECT 1 FROM (SELECT 1 FROM tally.payment_receipt r
                                                        WHERE r.order_id = l.order_id AND r.tenant_id = l.tenant_id
                                                          AND r.charge_key = l.idempotency_key OFFSET 0) AS r)
                      ORDER BY l.attempt LIMIT 1) AS l ON true
  LEFT JOIN LATERAL (SELECT * FROM tally.intent i
                      WHERE i.tenant_id = l.tenant_id AND i.key = l.idempotency_key AND i.provider = l.provider
                     OFFSET 0) AS i ON true
  LEFT JOIN LATERAL tally.unread(l.provider) AS u ON true;

-- name: decide
-- Under the claim: who was paused past it changes nothing. A verdict stays what it was; what is closed is closed.
UPDATE tally.order_hold h
   SET verdict = coalesce(h.verdict, $4), reason = $5, evidence = coalesce($6, h.evidence), tries = h.tries + 1,
       due_at = coalesce($7::timestamptz, h.due_at), closed_as = $8
 WHERE h.tenant_id = $1 AND h.order_id = $2 AND h.claim_number = $3
   AND (h.verdict IS NULL OR (h.verdict IN ('given_up', 'absent') AND h.closed_as IS NULL))
RETURNING h.order_id;

-- name: end_cancelled
-- The provider has cancelled it: it can no longer be paid. Only what it had; and a webhook may have told it already. One that
-- was refused keeps the reason of its refusal.
UPDATE tally.payment_idempotency_log l
   SET status = 'FAILED', is_confirmable = false,
       reason = CASE l.status WHEN 'FAILED' THEN l.reason ELSE 'failed_at_the_provider' END,
       completed_at = CASE l.status WHEN 'FAILED' THEN l.completed_at ELSE clock_timestamp() END,
       claim_number = l.claim_number + 1
 WHERE l.tenant_id = $1 AND l.idempotency_key = $2
   AND (l.status || '' = 'COMPLETED' OR (l.status || '' = 'FAILED' AND l.is_confirmable));

-- name: has_failed
-- Whether what was told has failed by itself, even once: such an event holds nothing (as in watermark.sql).
SELECT EXISTS (SELECT 1 FROM tally.webhook_guard g
                CROSS JOIN LATERAL (SELECT e.tries FROM tally.webhook_events e WHERE e.number = g.number OFFSET 0) AS e
                WHERE g.provider = $1 AND g.dedup_key = ANY ($2::text[]) AND e.tries > 0);
