-- Where an id leads that is not an order's, a settlement's or a transaction's own. `what` and `id` are what it belongs to.

-- name: by_name
-- Ids that have an index of their own: a provider's refund, a payment it told of, an approval. One about a refund has as
-- its subject a digest of order and payment: its evidence names the order.
SELECT 'order' AS what, l.order_id AS id FROM tally.payment_idempotency_log l WHERE l.tenant_id = $1 AND l.refund_id = $2
 UNION
SELECT 'order', r.order_id FROM tally.payment_receipt r WHERE r.tenant_id = $1 AND r.payment_intent_id = $2
 UNION
SELECT CASE WHEN a.action IN ('refund_keep', 'refund_confirm') THEN 'order' ELSE 'settlement' END,
       CASE WHEN a.action IN ('refund_keep', 'refund_confirm')
            THEN substr(a.evidence::jsonb ->> 'order', 4)::uuid ELSE a.subject END
  FROM tally.approval a WHERE a.tenant_id = $1 AND a.id = $3
 UNION
SELECT 'order', r.order_id FROM tally.refund_request r WHERE r.tenant_id = $1 AND r.key = $2;

-- name: keys
-- The keys that a provider may have written in a form of its own; which of them it is, the caller compares.
SELECT i.key FROM tally.intent i WHERE i.tenant_id = $1 AND i.key BETWEEN $2 AND $3;

-- name: by_key
SELECT 'order' AS what, l.order_id AS id FROM tally.payment_idempotency_log l
 WHERE l.tenant_id = $1 AND l.idempotency_key = ANY ($2::bytea[])
 UNION
SELECT 'settlement', i.subject FROM tally.intent i
 WHERE i.tenant_id = $1 AND i.key = ANY ($2::bytea[]) AND i.purpose IN ('transfer', 'payout') AND i.subject IS NOT NULL;

-- name: reply
SELECT r.key, r.request, r.body, r.at FROM tally.reply r WHERE r.tenant_id = $1 AND r.key = $2;

-- name: by_token
-- No index: a token is looked for once in a blue moon, and an index would be paid for by every reservation.
SELECT 'order' AS what, o.id FROM tally.orders o WHERE o.tenant_id = $1 AND o.reservation_token = $2;

-- name: by_evidence
-- Ids of requests, and of objects that an answer names beside its own, stand in the evidence alone. $3 is the same id as a
-- word: another that merely contains it is not meant. The plain position comes first, because it costs a tenth.
WITH told AS (
    SELECT a.tenant_id, a.key, a.provider FROM tally.attempt a
     WHERE a.tenant_id = $1 AND position($2::bytea IN a.evidence) > 0 AND convert_from(a.evidence, 'UTF8') ~ $3
)
SELECT 'order' AS what, l.order_id AS id FROM told
  JOIN tally.payment_idempotency_log l ON l.tenant_id = told.tenant_id AND l.idempotency_key = told.key
 UNION
SELECT 'settlement', i.subject FROM told JOIN tally.intent i USING (tenant_id, key, provider)
 WHERE i.purpose IN ('transfer', 'payout') AND i.subject IS NOT NULL
 UNION
SELECT 'order', l.order_id FROM tally.payment_idempotency_log l
 WHERE l.tenant_id = $1 AND position($2::bytea IN l.provider_response) > 0
   AND convert_from(l.provider_response, 'UTF8') ~ $3
 UNION
SELECT 'order', h.order_id FROM tally.order_hold h
 WHERE h.tenant_id = $1 AND position($2::bytea IN h.evidence) > 0 AND convert_from(h.evidence, 'UTF8') ~ $3
 UNION
SELECT 'settlement', s.id FROM tally.settlement_event e
  JOIN tally.settlement s ON s.tenant_id = e.tenant_id AND s.number = e.settlement
 WHERE e.tenant_id = $1 AND position($2::bytea IN e.body) > 0 AND convert_from(e.body, 'UTF8') ~ $3
 UNION
-- What a person named to another: a refund that we did not make, and that no log of ours has.
SELECT 'order', substr(a.evidence::jsonb ->> 'order', 4)::uuid FROM tally.approval a
 WHERE a.tenant_id = $1 AND a.action IN ('refund_keep', 'refund_confirm') AND a.evidence ~ $3
 UNION
SELECT 'settlement', a.subject FROM tally.approval a
 WHERE a.tenant_id = $1 AND a.action NOT IN ('refund_keep', 'refund_confirm') AND a.evidence ~ $3;

-- name: by_answer
-- The id that an answer named, also one that came too late to be believed, or whose evidence was let go.
WITH told AS (SELECT a.tenant_id, a.key, a.provider FROM tally.attempt a WHERE a.tenant_id = $1 AND a.provider_id = $2)
SELECT 'order' AS what, l.order_id AS id FROM told
  JOIN tally.payment_idempotency_log l ON l.tenant_id = told.tenant_id AND l.idempotency_key = told.key
 UNION
SELECT 'settlement', i.subject FROM told JOIN tally.intent i USING (tenant_id, key, provider)
 WHERE i.purpose IN ('transfer', 'payout') AND i.subject IS NOT NULL;

-- name: by_digest
SELECT j.xid, j.number, j.subject, j.operation_id, j.body, encode(j.digest, 'hex') AS digest
  FROM tally.journal j WHERE j.tenant_id = $1 AND j.digest = $2;

-- name: events_about
-- Events are found by what they tell of only here: no index, for the same reason.
SELECT number FROM tally.webhook_events e
 WHERE $1 IN (e.provider_id, e.object_id, e.parent, e.reference) ORDER BY number DESC LIMIT $2;

-- name: skus
SELECT s.sku, s.stock, s.reserved, s.sold, s.backordered FROM tally.sku s WHERE s.tenant_id = $1 AND s.sku = $2;

-- name: keys_of_the_api
SELECT k.prefix, k.role, k.owner, k.created_at, k.revoked_at FROM tally.api_key k
 WHERE k.tenant_id = $1 AND k.prefix = $2 ORDER BY k.created_at;

-- name: destinations
SELECT d.provider, d.added_by, d.added_at, d.withdrawn_at FROM tally.destination d
 WHERE d.tenant_id = $1 AND d.digest = sha256(convert_to($2, 'UTF8')) ORDER BY d.provider;

-- name: settlements_of
-- What they pay, whom and where. No index leads from a destination to them, nor from an attribution alone.
SELECT part.what, count(*) OVER (PARTITION BY part.what) AS count, s.id, s.created_at, s.amount_micros, s.currency,
       s.destination, st.status
  FROM tally.settlement s JOIN tally.settlement_state st USING (tenant_id, number)
 CROSS JOIN LATERAL (VALUES ('attribution', s.attribution_id), ('squad', s.squad_id), ('destination', s.destination))
       AS part (what, name)
 WHERE s.tenant_id = $1 AND $2 IN (s.attribution_id, s.squad_id, s.destination) AND part.name = $2
 ORDER BY s.number DESC LIMIT $3;

-- name: sent_from
SELECT i.provider, count(*) AS count, min(i.first_sent_at) AS first, max(i.first_sent_at) AS last
  FROM tally.intent i WHERE i.tenant_id = $1 AND i.account = $2 GROUP BY i.provider ORDER BY i.provider;

-- name: breaks_about
SELECT number, kind, provider, purpose, object_id, word, amount_micros, currency, found_at, resolved_at, resolution,
       resolved_by
  FROM tally.payment_break WHERE object_id = $1 OR number = $2 ORDER BY number;

-- name: orphans_about
SELECT provider, provider_id, reference, amount_micros, currency, state, found_at
  FROM tally.orphan WHERE $1 IN (provider_id, reference, parent) ORDER BY found_at;

-- name: lives_shown_by
SELECT number, provider, why, began_at FROM tally.life WHERE shown_by = $1 ORDER BY number;

-- name: set_aside
SELECT number, topic, partition, first_offset, reason, found_at, resolved_at, resolution, resolved_by
  FROM tally.webhook_poison WHERE number = $1;

-- name: installation
SELECT id::text AS id, made_at FROM tally.installation;

-- name: other_tenants
SELECT tenant_id, name FROM tally.tenant WHERE tenant_id <> $1 ORDER BY tenant_id LIMIT $2;
