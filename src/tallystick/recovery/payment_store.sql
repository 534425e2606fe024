-- name: mark
-- A new claim number: a worker of before can no longer write. Its key is computed again from its content (the functions that
-- the log's own trigger uses); of an order that is not there nothing can be computed. $5: its provider can be asked, so that
-- what it waited for a person with is asked about once more.
WITH open AS (
    SELECT tenant_id, idempotency_key FROM tally.payment_idempotency_log
     WHERE operation_type = $1 AND status = 'PENDING' AND provider = $2 AND NOT ask_first
     ORDER BY idempotency_key, tenant_id LIMIT $4 FOR NO KEY UPDATE
), marked AS (
    UPDATE tally.payment_idempotency_log l
       SET ask_first = true, claim_number = l.claim_number + 1, due_at = $3,
           reason = CASE WHEN l.idempotency_key IS DISTINCT FROM CASE l.operation_type
                              WHEN 'CHARGE' THEN tally.charge_key(t.name, l, (
                                   SELECT o.reservation_token FROM tally.orders o
                                    WHERE o.tenant_id = l.tenant_id AND o.id = l.order_id))
                              ELSE tally.refund_key(t.name, l) END THEN $6
                         WHEN $5 THEN NULL
                         ELSE l.reason END
      FROM open JOIN tally.tenant t ON t.tenant_id = open.tenant_id
     WHERE l.idempotency_key = open.idempotency_key AND l.tenant_id = open.tenant_id
    RETURNING l.reason
)
SELECT count(*) AS marked, count(*) FILTER (WHERE reason = $6) AS differ FROM marked;

-- name: ask_again
-- Asked about in an earlier run, without an answer: a person who runs it again does not wait for the pause after that.
UPDATE tally.payment_idempotency_log l SET due_at = $2
  FROM (SELECT tenant_id, idempotency_key FROM tally.payment_idempotency_log
         WHERE status = 'PENDING' AND provider = $1 AND ask_first AND reason IS NULL AND due_at > $2
         ORDER BY idempotency_key, tenant_id FOR NO KEY UPDATE) AS unanswered
 WHERE l.idempotency_key = unanswered.idempotency_key AND l.tenant_id = unanswered.tenant_id;

-- name: standing
-- A reason calls a person: such a one is decided by him, and holds up nobody else.
SELECT operation_type, provider, count(*) FILTER (WHERE reason IS NULL) AS undecided,
       count(*) FILTER (WHERE reason IS NOT NULL) AS waiting_for_person,
       coalesce(max(due_at) FILTER (WHERE reason IS NULL), clock_timestamp()) AS last, clock_timestamp() AS now
  FROM tally.payment_idempotency_log WHERE status = 'PENDING' AND ask_first GROUP BY operation_type, provider;
