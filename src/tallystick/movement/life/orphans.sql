-- name: known_keys
-- Only what was sent from here explains a movement: a row with its key was created again, or not yet sent, when a life was
-- lost that had sent it.
SELECT i.key FROM tally.tenant t JOIN tally.intent i
    ON i.tenant_id = t.tenant_id AND i.provider = $1 AND i.key BETWEEN $2 AND $3 AND i.attempts > 0;

-- name: installation
SELECT id::text FROM tally.installation;

-- name: sent_or_known
-- What was sent from here, by key; and, without one, what was seen before and is kept.
SELECT m.place, i.key
  FROM unnest($2::integer[], $3::bytea[], $4::bytea[]) AS m (place, first, last), tally.tenant t, tally.intent i
 WHERE i.tenant_id = t.tenant_id AND i.provider = $1 AND i.key BETWEEN m.first AND m.last AND i.attempts > 0
 UNION ALL
SELECT m.place, NULL
  FROM unnest($2::integer[], $5::text[]) AS m (place, id)
  JOIN tally.orphan o ON o.provider = $1 AND o.provider_id = m.id;

-- name: rows_of_key
-- What adopts the movement, or takes it to a person. A charge or refund that is closed does neither.
SELECT s.key FROM tally.tenant t JOIN tally.settlement s
    ON s.tenant_id = t.tenant_id AND s.provider = $1 AND s.key BETWEEN $2 AND $3
UNION ALL
SELECT l.idempotency_key FROM tally.payment_idempotency_log l
 WHERE l.idempotency_key BETWEEN $2 AND $3 AND l.provider = $1 AND l.status <> 'FAILED';

-- name: named_rows
-- Rows that wait to be sent under its key, or by its name: they are asked about.
UPDATE tally.settlement_state st SET ask_first = true
  FROM tally.settlement s
 WHERE (s.key BETWEEN $2 AND $3 OR s.id = $4) AND s.provider = $1
   AND st.tenant_id = s.tenant_id AND st.number = s.number AND st.status IN ('held', 'pending', 'processing')
   AND NOT st.ask_first;

-- name: add_orphan
INSERT INTO tally.orphan
       (provider, reference, provider_id, amount_micros, currency, state, subject, purpose, key_from, key_to, made_at,
        parent, word)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, coalesce($11, (SELECT min(created_at) FROM tally.tenant)), $12, $13)
    ON CONFLICT (provider, provider_id) DO UPDATE
   SET state = excluded.state, key_from = excluded.key_from, key_to = excluded.key_to, made_at = excluded.made_at,
       parent = excluded.parent, word = excluded.word;

-- name: given_back_elsewhere
SELECT g.provider_id FROM tally.given_back_elsewhere($1, $2) AS g WHERE g.amount_micros = $3 AND g.currency = $4 LIMIT 1;

-- name: knows_of_refunds
-- Hardly any database has lost something: then a tick begins without a transaction that writes.
SELECT EXISTS (SELECT FROM tally.orphan o WHERE o.parent IS NOT NULL AND o.purpose = 'refund');

-- name: report_given_back
-- What a lost life gave back of payments that are recorded here: a person must know. Once, whatever is said of it later.
INSERT INTO tally.payment_break (kind, provider, purpose, object_id, word, amount_micros, currency, tenant_id, order_id,
                                 event_number)
SELECT 'refunded_outside', g.provider, g.purpose, g.provider_id, coalesce(g.word, g.state), g.amount_micros, g.currency,
       r.tenant_id, r.order_id, r.event_number
  FROM (SELECT DISTINCT o.provider, o.parent FROM tally.orphan o WHERE o.parent IS NOT NULL AND o.purpose = 'refund') AS of
  JOIN tally.payment_receipt r ON r.payment_intent_id = of.parent AND r.provider = of.provider
 CROSS JOIN LATERAL tally.given_back_elsewhere(of.provider, of.parent) AS g
 WHERE NOT EXISTS (SELECT FROM tally.payment_break b
                    WHERE b.provider = g.provider AND b.object_id = g.provider_id AND b.kind = 'refunded_outside')
    ON CONFLICT (provider, object_id, kind, word) DO NOTHING
RETURNING object_id;
