-- What an ended webhook event told may go; that it was told, and what became of it, stays for ever.
--
-- Of an order's growth webhook events are the largest part after the bodies they were read from. Nobody decides by an event
-- that has ended: the guard knows that it was told, receipts, refunds and settlements know what was done about it. So, once
-- the bodies of its day were detached, its row gives way to its verdict. The guard is not touched.

CREATE TABLE tally.webhook_verdict (
    -- Of the guard, and of the event that was here.
    number       bigint PRIMARY KEY,
    status       text COLLATE "C" NOT NULL CHECK (status IN ('PROCESSED_OK', 'PROCESSED_COMPENSATED')),
    received_at  timestamptz NOT NULL,
    processed_at timestamptz NOT NULL,
    reason       text
);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.webhook_verdict
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a verdict is kept for good');

-- Only retention deletes, and whoever says by hand that he is it still cannot take an event that has no verdict.
DROP TRIGGER kept ON tally.webhook_events;
CREATE TRIGGER kept BEFORE DELETE ON tally.webhook_events
    FOR EACH STATEMENT WHEN (NOT tally.is_retaining())
    EXECUTE FUNCTION tally.refuse_change('what was acknowledged is kept');
CREATE TRIGGER kept_whole BEFORE TRUNCATE ON tally.webhook_events
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('what was acknowledged is kept');
CREATE FUNCTION tally.webhook_has_verdict() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM tally.webhook_verdict v
                    WHERE v.number = old.number AND v.status = old.status AND v.received_at = old.received_at
                      AND v.processed_at = old.processed_at AND v.reason IS NOT DISTINCT FROM old.reason) THEN
        RAISE EXCEPTION 'tally: an event goes when its verdict is kept' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN old;
END $$;
CREATE TRIGGER has_verdict BEFORE DELETE ON tally.webhook_events
    FOR EACH ROW EXECUTE FUNCTION tally.webhook_has_verdict();

-- Ended events of days whose bodies were detached, in the order of their numbers: `last` is where to go on, NULL at the end.
-- Kept are those of which something may still be asked: money that has no receipt here (a break, or a fault that verify must
-- go on seeing), money that was given back and whose refund is not done, and whatever an open break names. A dry run counts.
CREATE FUNCTION tally.retain_webhooks(after bigint, most integer, is_dry boolean,
                                      OUT trimmed bigint, OUT bytes bigint, OUT last bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    days    integer := tally.webhook_body_days();
    before  timestamptz := ((clock_timestamp() AT TIME ZONE 'UTC')::date - days)::timestamp AT TIME ZONE 'UTC';
    upto    bigint;
    numbers bigint[];
BEGIN
    -- Numbers follow the time they were received at, nearly: a stretch that is too young as a whole is the last.
    SELECT max(s.number), CASE WHEN count(*) = most AND min(s.received_at) < before THEN max(s.number) END
      INTO upto, last
      FROM (SELECT e.number, e.received_at FROM tally.webhook_events e
             WHERE e.number > after ORDER BY e.number LIMIT most) AS s;
    -- Ended ones never change: whoever holds one is another run of this.
    SELECT coalesce(array_agg(o.number), '{}'), count(*), coalesce(sum(o.length), 0) INTO numbers, trimmed, bytes
      FROM (SELECT e.number, pg_column_size(e.*) AS length
              FROM tally.webhook_events e
             WHERE e.number > after AND e.number <= upto
               AND e.status IN ('PROCESSED_OK', 'PROCESSED_COMPENSATED') AND e.received_at < before
               AND EXISTS (SELECT FROM tally.webhook_body_detached d
                            WHERE d.day = (e.received_at AT TIME ZONE 'UTC')::date)
               AND NOT EXISTS (SELECT FROM tally.webhook_body b
                                WHERE b.received_at = e.received_at AND b.number = e.number)
               AND (e.purpose IS DISTINCT FROM 'charge' OR e.state <> 'moved'
                    OR EXISTS (SELECT FROM tally.payment_receipt r
                                WHERE r.provider = e.provider AND r.payment_intent_id = e.provider_id))
               AND (e.status <> 'PROCESSED_COMPENSATED'
                    OR EXISTS (SELECT FROM tally.payment_receipt r
                                 JOIN tally.payment_idempotency_log f
                                   ON f.tenant_id = r.tenant_id AND f.provider = r.provider
                                  AND f.payment_intent_id = r.payment_intent_id AND f.operation_type = 'REFUND'
                                WHERE r.provider = e.provider AND r.payment_intent_id = e.provider_id
                                  AND r.event_number = e.number AND f.refund_id IS NOT NULL
                                  AND f.status IN ('COMPLETED', 'FAILED')))
               AND NOT EXISTS (SELECT FROM tally.payment_break b
                                WHERE b.event_number = e.number AND b.resolved_at IS NULL)
             ORDER BY e.number FOR UPDATE OF e SKIP LOCKED) AS o;
    IF is_dry THEN
        RETURN;
    END IF;
    INSERT INTO tally.webhook_verdict (number, status, received_at, processed_at, reason)
    SELECT e.number, e.status, e.received_at, e.processed_at, e.reason
      FROM tally.webhook_events e WHERE e.number = ANY (numbers);
    PERFORM set_config('tally.retaining', 'on', true);
    DELETE FROM tally.webhook_events e WHERE e.number = ANY (numbers);
    PERFORM set_config('tally.retaining', '', true);
END $$;
REVOKE EXECUTE ON FUNCTION tally.retain_webhooks(bigint, integer, boolean) FROM PUBLIC;
