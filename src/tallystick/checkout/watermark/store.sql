-- name: mark
-- The moment, and who appends webhooks at it: nobody else writes to the guard, and its lock is held from before the
-- first row until the commit. By the statement's own time, which is before it looks.
SELECT statement_timestamp() AS at,
       ARRAY(SELECT l.virtualtransaction FROM pg_locks l
              WHERE l.locktype = 'relation' AND l.relation = 'tally.webhook_guard'::regclass
                AND l.mode = 'RowExclusiveLock'
                AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) AS writing;

-- name: oldest
-- When the first event was received that could pay an order and that nobody has decided. One that has failed by itself
-- holds nothing: it may do so again, for days. Nor does one whose money has a receipt, or whose order has ended: it waits
-- for its refund. $1: one that was received by then is enough to know; only if there is none are all of them looked at,
-- since those that an outage put off are no longer in the order they came. ORDER BY, so that no plan reads the whole table.
WITH open AS NOT MATERIALIZED (
    SELECT e.received_at, e.due_at, e.number, e.status, e.processing_until
      FROM tally.webhook_events e
     WHERE e.tries = 0 AND ((e.purpose = 'charge' AND e.state = 'moved') OR e.object_purpose = 'charge')
       AND NOT EXISTS (SELECT 1 FROM (SELECT 1 FROM tally.payment_receipt r
                                       WHERE r.payment_intent_id = e.provider_id AND r.provider = e.provider
                                      OFFSET 0) AS r)
       AND NOT EXISTS (SELECT 1 FROM (SELECT l.tenant_id, l.order_id FROM tally.payment_idempotency_log l
                                       WHERE l.payment_intent_id = e.provider_id AND l.provider = e.provider
                                         AND l.operation_type = 'CHARGE' OFFSET 0) AS l
                        CROSS JOIN LATERAL (SELECT o.status FROM tally.orders o
                                             WHERE o.tenant_id = l.tenant_id AND o.id = l.order_id OFFSET 0) AS o
                        WHERE o.status <> 'PENDING')
), first AS MATERIALIZED (
    SELECT received_at FROM open WHERE status = 'UNPROCESSED' ORDER BY due_at, number LIMIT 1
)
SELECT CASE WHEN (SELECT received_at FROM first) <= $1::timestamptz THEN (SELECT received_at FROM first)
            ELSE least((SELECT min(received_at) FROM (SELECT received_at FROM open WHERE status = 'UNPROCESSED'
                                                       ORDER BY due_at, number OFFSET 0) AS u),
                       (SELECT min(received_at) FROM (SELECT received_at FROM open WHERE status = 'IN_PROCESSING'
                                                       ORDER BY processing_until OFFSET 0) AS p)) END AS oldest;

-- name: deadline
-- Of the pending order that is due first.
SELECT min(expires_at) FROM tally.orders WHERE status = 'PENDING';
