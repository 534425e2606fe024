-- A database that has worked for a while, in the schema of the version before: a row of each kind for every number up to $1.
-- Written without triggers, by the superuser: plausible rows for migrations to work on, not a history that adds up.
SET session_replication_role = replica;
CREATE TEMP TABLE n AS SELECT n, md5(n::text)::uuid AS id, sha256(n::text::bytea) AS key,
                              now() - interval '90 days' + n * interval '1 minute' AS at
                         FROM generate_series(1, {rows}) AS n;
INSERT INTO tally.account (tenant_id, id, currency) SELECT 1, 'account-' || n, 'USD' FROM n WHERE n <= 1000;
-- Of before new clearing accounts had a floor.
INSERT INTO tally.account (tenant_id, id, currency, floor_micros) VALUES (1, 'settlement:clearing:USD', 'USD', NULL);
INSERT INTO tally.operation (tenant_id, id, key, request, body, at)
SELECT 1, id, 'key-' || n, convert_to('{"kind":"transfer"}', 'UTF8'), convert_to('{"id":"tx"}', 'UTF8'), at FROM n;
INSERT INTO tally.entry (tenant_id, account_number, number, operation_id, amount_micros, balance_micros, at)
SELECT 1, 1 + n % 1000, n / 1000 + 1, id, 1, n / 1000 + 1, at FROM n;
INSERT INTO tally.journal (tenant_id, subject, operation_id, digest) SELECT 1, 'operation', id, key FROM n;
INSERT INTO tally.outbox (tenant_id, topic, operation_id) SELECT 1, 'operation.committed', id FROM n;
INSERT INTO tally.intent (tenant_id, provider, key, purpose, instruction, account, first_sent_at, attempts, subject, ended)
SELECT 1, 'stripe', key, 'transfer', '\x7b7d', 'acct_1', at, 1, id, true FROM n;
INSERT INTO tally.attempt (tenant_id, provider, key, number, token, sent_at, not_after, answered_at, answer, provider_id,
                           evidence, state)
SELECT 1, 'stripe', key, 1, id, at, at + interval '10 s', at + interval '1 s', 'done', 'tr_' || n, '\x7b7d', 'moved' FROM n;
INSERT INTO tally.settlement (tenant_id, number, id, attribution_id, squad_id, currency, gross_micros, fee_micros, net_micros,
                              amount_micros, provider, destination, key, created_at)
OVERRIDING SYSTEM VALUE
SELECT 1, n, id, 'a-' || n, 'squad', 'USD', 100, 0, 100, 100, 'stripe', 'acct_1', key, at FROM n;
INSERT INTO tally.settlement_state (tenant_id, number, provider, status, transfer_id, changed_at, claim_number)
SELECT 1, n, 'stripe', 'transferred', 'tr_' || n, at, 1 FROM n;
INSERT INTO tally.reply (tenant_id, key, request, body, at) SELECT 1, 'reply-' || n, '\x7b7d', '\x7b7d', at FROM n;
INSERT INTO tally.sku (tenant_id, sku, stock, sold) VALUES (1, 'lamp', 1000000, {rows});
INSERT INTO tally.orders (tenant_id, id, sku, quantity, amount_micros, currency, status, created_at, expires_at, changed_at)
SELECT 1, id, 'lamp', 1, 100, 'USD', 'PAID', at, at + interval '10 min', at FROM n;
INSERT INTO tally.payment_idempotency_log (tenant_id, idempotency_key, order_id, operation_type, attempt, amount_micros,
                                           currency, provider, payment_intent_id, status, due_at, created_at, completed_at)
SELECT 1, key, id, 'CHARGE', 1, 100, 'USD', 'stripe', 'pi_' || n, 'COMPLETED', at, at, at FROM n;
INSERT INTO tally.payment_receipt (tenant_id, order_id, provider, payment_intent_id, charge_key, amount_micros, currency, fate,
                                   event_number, received_at)
SELECT 1, id, 'stripe', 'pi_' || n, key, 100, 'USD', 'PAID', n, at FROM n;
INSERT INTO tally.webhook_guard (provider, dedup_key, number) SELECT 'stripe', 'evt_' || n, n FROM n;
INSERT INTO tally.webhook_events (number, provider, event_id, type, received_at, status, claim_number, due_at, processed_at)
SELECT n, 'stripe', 'evt_' || n, 'payment_intent.succeeded', at, 'PROCESSED_OK', 1, at, at FROM n;
INSERT INTO tally.webhook_body (received_at, number, body) SELECT at, n, convert_to(repeat('x', 200), 'UTF8') FROM n;
ANALYZE;
