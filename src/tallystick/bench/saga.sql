-- name: expire
-- The time of every order is over, in a database that is thrown away: nobody waits ten minutes for it. The sweeper
-- itself then does the rest.
ALTER TABLE tally.orders DISABLE TRIGGER identity;
UPDATE tally.orders SET expires_at = created_at + interval '1 microsecond' WHERE status = 'PENDING';
ALTER TABLE tally.orders ENABLE TRIGGER identity;
-- As if the provider had been out of reach all the while: else it would be asked about each of them.
INSERT INTO tally.order_hold (tenant_id, order_id, verdict, closed_as)
SELECT tenant_id, id, 'given_up', 'unanswered' FROM tally.orders WHERE status = 'PENDING';

-- name: ends
SELECT (SELECT count(*) FROM tally.orders WHERE status = 'PAID') AS paid,
       (SELECT count(*) FROM tally.payment_idempotency_log
         WHERE operation_type = 'REFUND' AND status = 'COMPLETED') AS refunded,
       (SELECT count(*) FROM tally.webhook_events WHERE status = 'PROCESSED_OK') AS ok,
       (SELECT count(*) FROM tally.webhook_events WHERE status = 'PROCESSED_COMPENSATED') AS compensated;
