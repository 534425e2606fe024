-- Claims and pauses that end later than any can: they were dated by a clock that was ahead, and set right since. Each begins
-- anew from now, so that whoever holds it has as long as he was given. Found by the indexes of what is unfinished.

-- name: confirmed
UPDATE tally.whereabouts SET confirmed_at = clock_timestamp() WHERE confirmed_at > clock_timestamp() + $1::interval;

-- name: payouts
UPDATE tally.settlement_state s SET due_at = clock_timestamp() + $2::interval
 WHERE s.ctid = ANY (ARRAY(SELECT ctid FROM tally.settlement_state
                            WHERE status = 'processing' AND provider = ANY ($4::text[])
                              AND due_at > clock_timestamp() + $1::interval
                            LIMIT $3 FOR UPDATE SKIP LOCKED));

-- name: payments
UPDATE tally.payment_idempotency_log l SET due_at = clock_timestamp() + $2::interval
 WHERE l.ctid = ANY (ARRAY(SELECT ctid FROM tally.payment_idempotency_log
                            WHERE status = 'PENDING' AND operation_type = ANY ('{CHARGE,REFUND}')
                              AND due_at > clock_timestamp() + $1::interval
                            LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED));

-- name: leases
UPDATE tally.webhook_events e SET processing_until = clock_timestamp() + $2::interval
 WHERE e.ctid = ANY (ARRAY(SELECT ctid FROM tally.webhook_events
                            WHERE status = 'IN_PROCESSING' AND processing_until > clock_timestamp() + $1::interval
                            LIMIT $3 FOR UPDATE SKIP LOCKED));

-- name: events
UPDATE tally.webhook_events e SET due_at = clock_timestamp()
 WHERE e.ctid = ANY (ARRAY(SELECT ctid FROM tally.webhook_events
                            WHERE status = 'UNPROCESSED' AND due_at > clock_timestamp() + $1::interval
                            LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: holds
-- Orders that wait for a provider's word, and those that are asked about after they were swept. Since when one is held is set
-- right by whoever claims it next (release.sql).
UPDATE tally.order_hold h SET due_at = clock_timestamp()
 WHERE h.ctid = ANY (ARRAY(SELECT ctid FROM tally.order_hold
                            WHERE verdict IS NULL AND due_at > clock_timestamp() + $1::interval
                            LIMIT $2 FOR UPDATE SKIP LOCKED)
                  || ARRAY(SELECT ctid FROM tally.order_hold
                            WHERE verdict IN ('given_up', 'absent') AND closed_as IS NULL
                              AND due_at > clock_timestamp() + $1::interval
                            LIMIT $2 FOR UPDATE SKIP LOCKED));
