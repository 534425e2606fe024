-- Random histories of webhook events: told in the last 100 days, in every state, of money with and without a receipt, of
-- refunds that are done or not, of breaks that are open or not. Bodies of days older than 20 days were detached. Written
-- without triggers, by the superuser.
SELECT setseed(0.42);
INSERT INTO tally.webhook_events (number, provider, event_id, type, purpose, provider_id, reference, parent, amount_micros,
                                  currency, state, word, received_at, status, claim_number, claimed_by, processing_until,
                                  tries, due_at, processed_at, reason)
SELECT n, 'stripe', 'evt_' || n, 'payment_intent.succeeded', purpose, CASE WHEN purpose IS NOT NULL THEN 'pi_' || n % 7000 END,
       CASE WHEN purpose IS NOT NULL THEN encode(sha256(n::text::bytea), 'hex') END,
       CASE WHEN purpose IS NOT NULL THEN '' END, CASE WHEN purpose IS NOT NULL THEN 5000000 END,
       CASE WHEN purpose IS NOT NULL THEN 'EUR' END, CASE WHEN purpose IS NOT NULL THEN state END,
       CASE WHEN purpose IS NOT NULL THEN 'succeeded' END, at, status, 1, 'a worker',
       CASE WHEN status = 'IN_PROCESSING' THEN now() + sign(random() - 0.5) * interval '1 hour' END,
       CASE WHEN status = 'DEAD_LETTER' THEN 8 ELSE floor(random() * 2)::integer END, at,
       CASE WHEN status LIKE 'PROCESSED%' THEN at + interval '1 second' END,
       CASE WHEN status = 'DEAD_LETTER' OR random() < 0.1 THEN 'a reason' END
  FROM (SELECT n, date_trunc('second', now()) - interval '100 days' + n * interval '100 days' / {events} AS at,
               (ARRAY['charge', 'charge', 'refund', 'payout', NULL])[1 + floor(random() * 5 + 0 * n)::integer] AS purpose,
               (ARRAY['moved', 'moved', 'failed', 'waiting'])[1 + floor(random() * 4 + 0 * n)::integer] AS state,
               (ARRAY['PROCESSED_OK', 'PROCESSED_OK', 'PROCESSED_OK', 'PROCESSED_COMPENSATED', 'UNPROCESSED',
                      'IN_PROCESSING', 'DEAD_LETTER'])[1 + floor(random() * 7 + 0 * n)::integer] AS status
          FROM generate_series(1, {events}) AS n OFFSET 0) AS n;
INSERT INTO tally.webhook_guard (provider, dedup_key, number) SELECT provider, event_id, number FROM tally.webhook_events;
INSERT INTO tally.webhook_body (received_at, number, body)
SELECT received_at, number, convert_to('told ' || number, 'UTF8') FROM tally.webhook_events
 WHERE (received_at AT TIME ZONE 'UTC')::date > (now() AT TIME ZONE 'UTC')::date - 20;
INSERT INTO tally.webhook_body_detached (day)
SELECT (now() AT TIME ZONE 'UTC')::date - n FROM generate_series(20, 101) AS n;
INSERT INTO tally.payment_idempotency_log (tenant_id, idempotency_key, order_id, operation_type, attempt, amount_micros,
                                           currency, provider, payment_intent_id, status, due_at, created_at, completed_at)
SELECT 1, sha256(n::text::bytea), md5(n::text)::uuid, 'CHARGE', 1, 5000000, 'EUR', 'stripe', 'pi_' || n, 'COMPLETED', now(),
       now(), now() FROM generate_series(0, 6999) AS n WHERE random() < 0.8;
INSERT INTO tally.payment_receipt (tenant_id, order_id, provider, payment_intent_id, charge_key, amount_micros, currency, fate,
                                   reason, event_number, received_at)
SELECT DISTINCT ON (provider_id) 1, md5(provider_id)::uuid, 'stripe', provider_id, '', 5000000, 'EUR',
       CASE status WHEN 'PROCESSED_COMPENSATED' THEN 'REFUND' ELSE 'PAID' END, 'a reason', number, received_at
  FROM tally.webhook_events WHERE purpose = 'charge' AND state = 'moved' AND random() < 0.7 ORDER BY provider_id, number;
INSERT INTO tally.payment_idempotency_log (tenant_id, idempotency_key, order_id, operation_type, attempt, amount_micros,
                                           currency, provider, payment_intent_id, refund_id, status, due_at, created_at,
                                           completed_at)
SELECT 1, sha256(convert_to('refund ' || payment_intent_id, 'UTF8')), order_id, 'REFUND', 1, 5000000, 'EUR', 'stripe',
       payment_intent_id, CASE WHEN done THEN 're_' || payment_intent_id END, CASE WHEN done THEN 'COMPLETED' ELSE 'PENDING' END,
       now(), now(), CASE WHEN done THEN now() END
  FROM (SELECT r.*, random() < 0.8 AS done FROM tally.payment_receipt r WHERE fate = 'REFUND' OFFSET 0) AS r;
INSERT INTO tally.payment_break (kind, provider, purpose, object_id, word, amount_micros, currency, event_number, resolved_at,
                                 resolution, resolved_by)
SELECT 'disputed', 'stripe', 'charge', 'dp_' || n, 'lost', 1, 'EUR', n, CASE WHEN n % 2 = 0 THEN now() END,
       CASE WHEN n % 2 = 0 THEN 'looked at' END, CASE WHEN n % 2 = 0 THEN 'a person' END
  FROM generate_series(1, {events}, 7) AS n;
