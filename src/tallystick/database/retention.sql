-- name: read
SELECT evidence_days, reply_days, outbox_days, webhook_days, changed_by, changed_at
  FROM tally.retention_policy WHERE tenant_id = $1;

-- name: put
INSERT INTO tally.retention_policy AS p (tenant_id, evidence_days, reply_days, outbox_days, webhook_days, changed_by)
VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (tenant_id) DO UPDATE
   SET evidence_days = excluded.evidence_days, reply_days = excluded.reply_days, outbox_days = excluded.outbox_days,
       webhook_days = excluded.webhook_days, changed_by = excluded.changed_by, changed_at = clock_timestamp();

-- name: tenants
-- Those who have a policy; the others keep everything.
SELECT t.tenant_id, t.name FROM tally.tenant t JOIN tally.retention_policy p USING (tenant_id) ORDER BY t.tenant_id;

-- name: retain
SELECT what, trimmed, bytes FROM tally.retain($1, $2, $3);

-- name: retain_evidence
SELECT trimmed, bytes, last FROM tally.retain_evidence($1, $2, $3, $4);

-- name: body_days
SELECT tally.webhook_body_days();

-- name: retain_webhooks
SELECT trimmed, bytes, last FROM tally.retain_webhooks($1, $2, $3);

-- name: detach
SELECT tally.webhook_body_detach($1);

-- name: detachable
-- What `detach` would take: whole days that are over for so long, of which every event is at its end.
SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 CROSS JOIN LATERAL (SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS day) AS d
 WHERE i.inhparent = 'tally.webhook_body'::regclass AND c.relname ~ '^webhook_body_[0-9]{8}$'
   AND d.day + $1::integer < (clock_timestamp() AT TIME ZONE 'UTC')::date
   AND NOT EXISTS (SELECT FROM tally.webhook_events e
                    WHERE e.status IN ('UNPROCESSED', 'IN_PROCESSING', 'DEAD_LETTER')
                      AND e.received_at >= d.day::timestamp AT TIME ZONE 'UTC'
                      AND e.received_at < (d.day + 1)::timestamp AT TIME ZONE 'UTC')
 ORDER BY 1;
