-- name: table
-- As the paper has it: everything in one table, the body as JSONB, the provider's id unique.
CREATE TABLE IF NOT EXISTS webhook_baseline (
    id               uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    psp_event_id     text NOT NULL UNIQUE,
    event_type       text NOT NULL,
    raw_payload      jsonb NOT NULL,
    status           text NOT NULL DEFAULT 'UNPROCESSED',
    processing_until timestamptz,
    created_at       timestamptz NOT NULL DEFAULT now(),
    processed_at     timestamptz
);
CREATE INDEX IF NOT EXISTS webhook_baseline_open ON webhook_baseline
    (status, processing_until) WHERE status IN ('UNPROCESSED', 'IN_PROCESSING');

-- name: insert
INSERT INTO webhook_baseline (psp_event_id, event_type, raw_payload) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;

-- name: baseline_count
SELECT count(*) FROM webhook_baseline;

-- name: count
SELECT count(*) FROM tally.webhook_events;
