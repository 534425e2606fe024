-- name: conservation
-- Every transaction sums to zero per currency, and therefore all balances do.
SELECT (SELECT count(*) FROM (
            SELECT 1 FROM tally.entry e
              JOIN tally.account a ON a.tenant_id = e.tenant_id AND a.number = e.account_number
             GROUP BY e.tenant_id, e.operation_id, a.currency HAVING sum(e.amount_micros) <> 0) AS unbalanced)
     + (SELECT count(*) FROM (
            SELECT 1 FROM tally.account GROUP BY tenant_id, currency HAVING sum(balance_micros) <> 0) AS unbalanced)
           AS broken,
       (SELECT count(*) FROM tally.operation) AS checked;

-- name: solvency
-- Now, and after every single entry since the floor was set: an entry below a floor that still stands is counted
-- only for the present balance, because floors may be raised later.
SELECT count(*) FILTER (WHERE balance_micros < floor_micros) AS broken, count(*) AS checked FROM tally.account;

-- name: balances
-- Each account's balance is the sum of its entries, its last running balance, and its entries are numbered 1..n
-- with every running balance following from the one before.
WITH chained AS (
    SELECT tenant_id, account_number, number, amount_micros, balance_micros, at,
           lag(balance_micros, 1, 0) OVER account_order AS before,
           lag(number, 1, 0) OVER account_order AS number_before,
           lag(at, 1, '-infinity') OVER account_order AS at_before
      FROM tally.entry
    WINDOW account_order AS (PARTITION BY tenant_id, account_number ORDER BY number)
), summed AS (
    SELECT tenant_id, account_number, sum(amount_micros) AS total, count(*) AS entries, max(at) AS last_at,
           count(*) FILTER (WHERE before + amount_micros <> balance_micros OR number_before + 1 <> number
                               OR at < at_before) AS jumps
      FROM chained GROUP BY tenant_id, account_number
)
SELECT count(*) FILTER (WHERE a.number IS NULL OR coalesce(s.jumps, 0) <> 0 OR a.entries <> coalesce(s.entries, 0)
                           OR a.balance_micros <> coalesce(s.total, 0)
                           OR a.posted_at <> coalesce(s.last_at, 'epoch')) AS broken,
       count(*) AS checked
  FROM tally.account a
  FULL JOIN summed s ON s.tenant_id = a.tenant_id AND s.account_number = a.number;

-- name: one_effect_per_key
-- An operation's id is the digest of its tenant and key; no key has two; and the entries in the books are those
-- in the answer that is replayed, at its time; later only where the account's entry before is later, too.
WITH answered AS (
    SELECT o.tenant_id, o.id, e.account, e.currency, e.amount_micros, e.balance_micros, e.number
      FROM tally.operation o
     CROSS JOIN LATERAL (SELECT convert_from(o.body, 'UTF8')::jsonb AS value) AS body
     CROSS JOIN LATERAL jsonb_to_recordset(body.value -> 'entries')
           AS e (account text, currency text, amount_micros bigint, balance_micros bigint, number bigint)
), booked AS (
    SELECT e.tenant_id, e.operation_id AS id, a.id AS account, a.currency, e.amount_micros, e.balance_micros,
           e.number
      FROM tally.entry e JOIN tally.account a ON a.tenant_id = e.tenant_id AND a.number = e.account_number
)
SELECT (SELECT count(*) FROM tally.operation o LEFT JOIN tally.tenant t USING (tenant_id)
         WHERE t.name IS NULL OR o.id <> encode(substring(sha256(convert_to(
                   '{version}:' || length(t.name) || ':' || t.name || ':' || length(o.key) || ':' || o.key, 'UTF8'))
               FROM 1 FOR 16), 'hex')::uuid)
     + (SELECT count(*) FROM (SELECT 1 FROM tally.operation GROUP BY tenant_id, key HAVING count(*) > 1) AS twice)
     + (SELECT count(*) FROM tally.operation o
         CROSS JOIN LATERAL (SELECT convert_from(o.body, 'UTF8')::jsonb AS value) AS body
         WHERE o.at <> (body.value ->> 'at')::timestamptz
            OR CASE body.value ->> 'kind' WHEN 'order.reserved' THEN jsonb_array_length(body.value -> 'entries') > 0
               ELSE jsonb_array_length(body.value -> 'entries') < 2 END)
     + (SELECT count(*) FROM tally.entry e
          JOIN tally.operation o ON o.tenant_id = e.tenant_id AND o.id = e.operation_id
          LEFT JOIN tally.entry b ON b.tenant_id = e.tenant_id AND b.account_number = e.account_number
                                 AND b.number = e.number - 1
         WHERE e.at <> greatest(o.at, b.at))
     + (SELECT count(*) FROM (SELECT * FROM answered EXCEPT ALL SELECT * FROM booked) AS not_booked)
     + (SELECT count(*) FROM (SELECT * FROM booked EXCEPT ALL SELECT * FROM answered) AS not_answered) AS broken,
       (SELECT count(*) FROM tally.operation) AS checked;

-- name: closings
-- Every release and refund has closed what it names, once, and nothing is closed without one.
WITH named AS (
    SELECT o.tenant_id, replace(body.value ->> 'closes', 'tx_', '')::uuid AS closed_id, o.id AS operation_id,
           body.value ->> 'kind' AS kind
      FROM tally.operation o
     CROSS JOIN LATERAL (SELECT convert_from(o.body, 'UTF8')::jsonb AS value) AS body
     WHERE body.value ? 'closes' OR body.value ->> 'kind' IN ('release', 'refund')
)
SELECT (SELECT count(*) FROM named WHERE closed_id IS NULL)
     + (SELECT count(*) FROM (SELECT tenant_id, closed_id, operation_id FROM named WHERE closed_id IS NOT NULL
                              EXCEPT ALL SELECT tenant_id, closed_id, operation_id FROM tally.closing) AS not_closed)
     + (SELECT count(*) FROM (SELECT tenant_id, closed_id, operation_id FROM tally.closing
                              EXCEPT ALL SELECT tenant_id, closed_id, operation_id FROM named) AS not_named) AS broken,
       (SELECT count(*) FROM named) AS checked;

-- name: accounts
-- Floor, currency and limits of every account are those of its last step in the journal.
WITH step AS (
    SELECT DISTINCT ON (j.tenant_id, body.value ->> 'account')
           j.tenant_id, body.value ->> 'account' AS id, body.value
      FROM tally.journal j
     CROSS JOIN LATERAL (SELECT convert_from(j.body, 'UTF8')::jsonb AS value) AS body
     WHERE j.subject = 'account'
     ORDER BY j.tenant_id, body.value ->> 'account', j.number DESC
), limits AS (
    SELECT tenant_id, account_number,
           jsonb_agg(jsonb_build_object('window_seconds', window_seconds, 'max_count', max_count,
                                        'max_sum_micros', max_sum_micros) ORDER BY window_seconds) AS value
      FROM tally.velocity_limit GROUP BY tenant_id, account_number
)
SELECT count(*) FILTER (WHERE s.value IS NOT NULL AND (
           s.value ->> 'currency' <> a.currency
        OR (s.value ->> 'floor_micros')::bigint IS DISTINCT FROM a.floor_micros
        OR a.limited <> (l.value IS NOT NULL)
        OR coalesce(l.value, '[]') <> (SELECT coalesce(jsonb_agg(e ORDER BY (e ->> 'window_seconds')::bigint), '[]')
                                         FROM jsonb_array_elements(s.value -> 'limits') AS e))) AS broken,
       count(*) AS checked
  FROM tally.account a
  LEFT JOIN step s USING (tenant_id, id)
  LEFT JOIN limits l ON l.tenant_id = a.tenant_id AND l.account_number = a.number;

-- name: guards
-- The triggers that hold these rules are there and on, and so is row-level security.
WITH guard AS (
        SELECT NOT EXISTS (SELECT 1 FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
                             JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'tally'
                            WHERE c.relname || '.' || t.tgname = wanted.name AND t.tgenabled IN ('O', 'A')) AS missing
          FROM unnest(ARRAY[
            'operation.operation_recorded', 'operation.append_only', 'closing.append_only', 'entry.entry_posted',
            'entry.append_only', 'journal.append_only', 'journal.names_own_operation', 'outbox.names_own_operation',
            'account.kept', 'account.identity', 'account.balance', 'account.balance_at_birth', 'intent.identity',
            'intent.kept', 'intent.ending', 'attempt.answered_once', 'attempt.kept', 'attempt.sent_journaled',
            'attempt.answer_journaled', 'settlement.settlement_created', 'settlement.identity', 'settlement.renewal',
            'settlement.kept', 'settlement_state.transition', 'settlement_state.fence', 'settlement_state.kept',
            'settlement_event.append_only', 'settlement_event.journaled', 'approval.decided_once', 'approval.kept',
            'approval.asked_journaled', 'approval.decided_journaled', 'settlement_policy.made_journaled', 'settlement_policy.kept',
            'settlement_policy.changed_journaled', 'reply.append_only', 'reply.reply_is_new',
            'reply_archive.append_only', 'retention_policy.made_journaled', 'retention_policy.changed_journaled',
            'retention_policy.kept', 'orders.orders_reserved', 'orders.orders_changed',
            'orders.born_pending', 'orders.identity', 'orders.transition', 'orders.patience', 'orders.kept',
            'sku.identity', 'sku.counters', 'sku.counters_at_birth', 'sku.kept', 'sku.made_journaled',
            'sku.changed_journaled', 'webhook_guard.append_only',
            'webhook_body.append_only', 'webhook_body.kept', 'webhook_body_default.append_only', 'webhook_body_default.kept',
            'webhook_events.kept', 'webhook_events.kept_whole', 'webhook_events.has_verdict',
            'webhook_verdict.append_only', 'webhook_events.begins', 'webhook_events.identity', 'webhook_events.identity_of_object',
            'webhook_events.transition', 'webhook_events.fence', 'webhook_events.finished', 'webhook_cursor.kept',
            'webhook_poison.kept', 'webhook_poison.identity', 'webhook_offset.kept',
            'payment_idempotency_log.payment_logged', 'payment_idempotency_log.payment_stepped',
            'payment_idempotency_log.identity', 'payment_idempotency_log.transition', 'payment_idempotency_log.fence',
            'payment_idempotency_log.kept', 'payment_idempotency_log.outcome', 'payment_key.payment_keys_bound',
            'payment_key.append_only', 'payment_idempotency_log.part', 'payment_receipt.refunding',
            'payment_receipt.refunding_at_birth', 'refund_request.refunds_requested', 'refund_request.append_only',
            'payment_receipt.receipts_made', 'payment_receipt.identity',
            'payment_receipt.transition', 'payment_receipt.kept', 'payment_break.kept', 'payment_break.identity',
            'checkout_policy.made_journaled', 'checkout_policy.changed_journaled', 'checkout_policy.kept',
            'api_key.made_journaled', 'api_key.changed_journaled', 'api_key.identity', 'api_key.kept',
            'settlement.source_identity', 'settlement.approval_identity', 'settlement.settlement_authorised',
            'settlement.generation_authorised', 'settlement_state.release', 'authority_policy.made_journaled',
            'authority_policy.changed_journaled', 'authority_policy.kept', 'authority_ceiling.made_journaled',
            'authority_ceiling.changed_journaled', 'authority_ceiling.counted', 'authority_ceiling.kept',
            'destination.made_journaled', 'destination.changed_journaled', 'destination.kept',
            'order_hold.kept', 'order_hold.decided_once']) AS wanted (name)
         UNION ALL
        SELECT NOT c.relrowsecurity
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'tally'
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id'
         WHERE c.relkind IN ('r', 'p')
         UNION ALL
        SELECT NOT EXISTS (SELECT 1 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                             JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'tally'
                            WHERE c.relname = wanted.name AND i.indisunique AND i.indisvalid)
          FROM unnest(ARRAY['one_live_key', 'settlement_tenant_id_id_key', 'settlement_tenant_id_key_key',
            'webhook_guard_pkey', 'one_live_charge', 'one_live_refund', 'charge_attempt', 'one_receipt', 'one_payer',
            'refund_generation', 'payment_key_pkey', 'refund_request_pkey',
            'restocked_once', 'one_live_part', 'webhook_poison_topic_partition_first_offset_digest_key'])
            AS wanted (name)
         UNION ALL
        SELECT NOT EXISTS (SELECT 1 FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
                             JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'tally'
                            WHERE c.relname || '.' || k.conname = wanted.name AND k.convalidated)
          FROM unnest(ARRAY['sku.never_oversold', 'sku.sku_reserved_check', 'sku.sku_sold_check',
            'sku.sku_backordered_check', 'orders.backordered_is_paid',
            'payment_receipt.refunds_within_payment']) AS wanted (name))
SELECT count(*) FILTER (WHERE missing) AS broken, count(*) AS checked FROM guard;

-- name: journal
-- Every operation is in the journal once, under the digest that its stored bytes give; so is every other step under
-- the digest of its own body.
WITH expected AS (
    SELECT o.tenant_id, o.id AS operation_id,
           sha256('tallystick/journal/1'::bytea
               || int4send(octet_length(t.name)) || convert_to(t.name, 'UTF8')
               || int4send(9) || 'operation'::bytea
               || int4send(octet_length(o.request)) || o.request
               || int4send(octet_length(o.body)) || o.body) AS digest,
           coalesce(convert_from(o.body, 'UTF8')::jsonb ->> 'author', 'unknown/earlier release') AS author
      FROM tally.operation o LEFT JOIN tally.tenant t USING (tenant_id)
), written AS (
    -- Under the author that the answer names, which the digest covers.
    SELECT tenant_id, operation_id, digest, author FROM tally.journal WHERE operation_id IS NOT NULL
)
SELECT (SELECT count(*) FROM (SELECT * FROM expected EXCEPT ALL SELECT * FROM written) AS missing)
     + (SELECT count(*) FROM (SELECT * FROM written EXCEPT ALL SELECT * FROM expected) AS unexplained)
     + (SELECT count(*) FROM tally.journal j LEFT JOIN tally.tenant t USING (tenant_id)
         WHERE j.operation_id IS NULL
           AND j.digest IS DISTINCT FROM sha256('tallystick/journal/1'::bytea
               || int4send(octet_length(t.name)) || convert_to(t.name, 'UTF8')
               || int4send(octet_length(j.subject)) || convert_to(j.subject, 'UTF8')
               || int4send(octet_length(j.body)) || j.body)) AS broken,
       (SELECT count(*) FROM tally.journal) AS checked;

-- name: intents
-- Attempts are numbered without a gap, none before its intent's first send, none while the one before it could still
-- write, and none after one that was done; each is journaled once when sent, and once when answered.
WITH ordered AS (
    SELECT a.*, lag(not_after) OVER intent_order AS leave_before, lag(answered_at) OVER intent_order AS answer_before,
           lag(number, 1, 0) OVER intent_order AS number_before,
           min(answered_at) FILTER (WHERE answer = 'done')
               OVER (intent_order ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS done_before
      FROM tally.attempt a
    WINDOW intent_order AS (PARTITION BY tenant_id, key, provider ORDER BY number)
), journaled AS (
    SELECT j.tenant_id, j.subject, body.value ->> 'provider' AS provider, body.value ->> 'key' AS key,
           (body.value ->> 'number')::integer AS number, body.value ->> 'answer' AS answer,
           body.value ->> 'provider_id' AS provider_id
      FROM tally.journal j
     CROSS JOIN LATERAL (SELECT convert_from(j.body, 'UTF8')::jsonb AS value) AS body
     WHERE j.subject IN ('attempt.sent', 'attempt.answered')
), expected AS (
    SELECT tenant_id, 'attempt.sent' AS subject, provider, encode(key, 'hex') AS key, number, NULL AS answer,
           NULL AS provider_id
      FROM tally.attempt
     UNION ALL
    SELECT tenant_id, 'attempt.answered', provider, encode(key, 'hex'), number, answer, provider_id
      FROM tally.attempt WHERE answer IS NOT NULL
)
SELECT (SELECT count(*) FROM tally.intent i
         WHERE i.attempts <> (SELECT count(*) FROM tally.attempt a
                               WHERE a.tenant_id = i.tenant_id AND a.key = i.key AND a.provider = i.provider))
     + (SELECT count(*) FROM ordered o LEFT JOIN tally.intent i USING (tenant_id, key, provider)
         WHERE i.first_sent_at IS NULL OR o.sent_at < i.first_sent_at OR o.number <> o.number_before + 1
            OR o.done_before <= o.sent_at
            OR (o.sent_at < o.leave_before AND coalesce(o.answer_before > o.sent_at, true)))
     + (SELECT count(*) FROM (SELECT * FROM expected EXCEPT ALL SELECT * FROM journaled) AS missing)
     + (SELECT count(*) FROM (SELECT * FROM journaled EXCEPT ALL SELECT * FROM expected) AS unexplained) AS broken,
       (SELECT count(*) FROM tally.attempt) AS checked;

-- name: tenants
-- No row names an account or an operation that its own tenant does not have; and no event is there twice.
SELECT (SELECT count(*) FROM tally.entry e
         WHERE NOT EXISTS (SELECT 1 FROM tally.account a
                            WHERE a.tenant_id = e.tenant_id AND a.number = e.account_number)
            OR NOT EXISTS (SELECT 1 FROM tally.operation o
                            WHERE o.tenant_id = e.tenant_id AND o.id = e.operation_id))
     + (SELECT count(*) FROM tally.outbox x
         WHERE x.operation_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM tally.operation o
                            WHERE o.tenant_id = x.tenant_id AND o.id = x.operation_id))
     + (SELECT count(*) FROM (SELECT 1 FROM tally.outbox WHERE operation_id IS NOT NULL
                               GROUP BY tenant_id, topic, operation_id HAVING count(*) > 1) AS twice) AS broken,
       (SELECT count(*) FROM tally.entry) AS checked;

-- name: settlements
-- The money of every settlement is where its state says, to the micro; its identity and key are its content's; what is
-- transferred was answered, found or confirmed, and no transfer of a provider's pays two of them.
WITH row AS (
    SELECT s.*, st.status, st.transfer_id, st.number AS stated, st.reason
      FROM tally.settlement s
      LEFT JOIN tally.settlement_state st ON st.tenant_id = s.tenant_id AND st.number = s.number
), place AS (
    SELECT tenant_id, 'settlement:payable:' || currency || ':' || squad_id AS account,
           CASE WHEN status IN ('held', 'pending', 'failed') THEN net_micros ELSE net_micros - amount_micros END AS micros
      FROM row
     UNION ALL
    SELECT tenant_id, CASE WHEN status = 'transferred' THEN 'settlement:paid_out:' ELSE 'settlement:in_transit:' END
                      || currency || ':' || provider, amount_micros
      FROM row WHERE status IN ('processing', 'disputed', 'transferred')
), expected AS (
    SELECT tenant_id, account, sum(micros) AS micros FROM place GROUP BY tenant_id, account
), booked AS (
    SELECT tenant_id, id AS account, balance_micros::numeric AS micros FROM tally.account
     WHERE id LIKE 'settlement:payable:%' OR id LIKE 'settlement:in\_transit:%' OR id LIKE 'settlement:paid\_out:%'
)
SELECT (SELECT count(*) FROM expected e FULL JOIN booked b USING (tenant_id, account)
         WHERE coalesce(e.micros, 0) <> coalesce(b.micros, 0))
     + (SELECT count(*) FROM row WHERE stated IS NULL)
     + (SELECT count(*) FROM tally.settlement s LEFT JOIN tally.tenant t USING (tenant_id)
         WHERE t.name IS NULL OR s.id <> tally.settlement_id(t.name, s) OR s.key <> tally.settlement_key(t.name, s))
     + (SELECT count(*) FROM row r
         WHERE r.status = 'transferred'
           AND NOT EXISTS (SELECT 1 FROM tally.attempt a
                            WHERE a.tenant_id = r.tenant_id AND a.key = r.key AND a.provider = r.provider
                              AND a.answer = 'done' AND a.provider_id = r.transfer_id)
           AND NOT EXISTS (SELECT 1 FROM tally.settlement_event e
                            WHERE e.tenant_id = r.tenant_id AND e.settlement = r.number
                              AND e.what IN ('looked_up', 'resolved_confirm')))
     + (SELECT count(*) FROM row r
         WHERE r.status = 'failed' AND r.reason <> 'written_off'
           AND EXISTS (SELECT 1 FROM tally.attempt a
                        WHERE a.tenant_id = r.tenant_id AND a.key = r.key AND a.provider = r.provider
                          AND a.answer = 'done')
           AND r.reason <> 'failed_at_the_provider')
     + (SELECT count(*) FROM (SELECT 1 FROM row WHERE status = 'transferred'
                               GROUP BY provider, transfer_id HAVING count(*) > 1) AS twice)
     + (SELECT count(*) FROM tally.intent i JOIN tally.settlement s ON s.tenant_id = i.tenant_id AND s.id = i.subject
         WHERE NOT i.ended AND i.key <> s.key)
     -- What needed a second person has one's consent, or was never sent.
     + (SELECT count(*) FROM row r
         WHERE r.needs_approval
           AND EXISTS (SELECT 1 FROM tally.intent i WHERE i.tenant_id = r.tenant_id AND i.subject = r.id)
           AND NOT EXISTS (SELECT 1 FROM tally.approval p
                            WHERE p.tenant_id = r.tenant_id AND p.subject = r.id AND p.decision = 'approved')) AS broken,
       (SELECT count(*) FROM tally.settlement) AS checked;

-- name: orders
-- What a SKU promises is what its orders hold, and never more than there is; every order is what was asked under its
-- key, and no such key is without its order; every step is journaled once, as it was taken.
WITH held AS (
    SELECT tenant_id, sku, coalesce(sum(quantity) FILTER (WHERE status = 'PENDING'), 0) AS reserved,
           coalesce(sum(quantity) FILTER (WHERE status = 'PAID' AND NOT is_backordered
               AND NOT EXISTS (SELECT 1 FROM tally.refund_request q
                                WHERE q.order_id = o.id AND q.tenant_id = o.tenant_id AND q.restock)), 0) AS sold,
           coalesce(sum(quantity) FILTER (WHERE is_backordered), 0) AS backordered
      FROM tally.orders o GROUP BY tenant_id, sku
), asked AS (
    SELECT o.tenant_id, o.id, o.request, o.at FROM tally.operation o
     WHERE convert_from(o.body, 'UTF8')::jsonb ->> 'kind' = 'order.reserved'
), stepped AS (
    SELECT tenant_id, id, lower(status) AS subject, is_backordered, changed_at AS at
      FROM tally.orders WHERE status <> 'PENDING'
), journaled AS (
    -- The last step of each; what a late payment or a filled backorder went on from is in the journal alone.
    SELECT DISTINCT ON (j.tenant_id, (body.value ->> 'order')::uuid)
           j.tenant_id, (body.value ->> 'order')::uuid AS id, lower(body.value ->> 'status') AS subject,
           coalesce((body.value ->> 'backordered')::boolean, false) AS is_backordered,
           (body.value ->> 'at')::timestamptz AS at
      FROM tally.journal j
     CROSS JOIN LATERAL (SELECT convert_from(j.body, 'UTF8')::jsonb AS value) AS body
     WHERE j.subject LIKE 'order.%'
     ORDER BY j.tenant_id, (body.value ->> 'order')::uuid, j.number DESC
), steps AS (
    -- How many each order took: from PENDING one, and one more only for a late payment or a filled backorder.
    SELECT j.tenant_id, body.value ->> 'order' AS id, body.value ->> 'was' AS was
      FROM tally.journal j
     CROSS JOIN LATERAL (SELECT convert_from(j.body, 'UTF8')::jsonb AS value) AS body
     WHERE j.subject LIKE 'order.%'
), stocked AS (
    SELECT DISTINCT ON (j.tenant_id, body.value ->> 'sku')
           j.tenant_id, body.value ->> 'sku' AS sku, (body.value ->> 'stock')::bigint AS stock
      FROM tally.journal j
     CROSS JOIN LATERAL (SELECT convert_from(j.body, 'UTF8')::jsonb AS value) AS body
     WHERE j.subject = 'sku.stock'
     ORDER BY j.tenant_id, body.value ->> 'sku', j.number DESC
)
SELECT (SELECT count(*) FROM tally.sku s FULL JOIN held h USING (tenant_id, sku)
         WHERE s.stock IS NULL OR s.reserved <> coalesce(h.reserved, 0) OR s.sold <> coalesce(h.sold, 0)
            OR s.backordered <> coalesce(h.backordered, 0) OR s.reserved + s.sold > s.stock)
     + (SELECT count(*) FROM tally.sku s LEFT JOIN stocked j USING (tenant_id, sku)
         WHERE s.stock IS DISTINCT FROM j.stock)
     + (SELECT count(*) FROM tally.orders o FULL JOIN asked a USING (tenant_id, id)
         WHERE a.request IS DISTINCT FROM tally.order_request(o.sku, o.quantity, o.amount_micros, o.currency)
            OR o.created_at <> a.at)
     + (SELECT count(*) FROM (SELECT * FROM stepped EXCEPT ALL SELECT * FROM journaled) AS missing)
     + (SELECT count(*) FROM (SELECT * FROM journaled EXCEPT ALL SELECT * FROM stepped) AS unexplained)
     + (SELECT count(*) FROM (SELECT 1 FROM steps GROUP BY tenant_id, id, was HAVING count(*) > 1) AS twice) AS broken,
       (SELECT count(*) FROM tally.orders) AS checked;

-- name: webhooks
-- Guard, event and body are one for one; a body may be missing only where its whole day was detached, an event only where its
-- verdict is kept instead; and the reader's role, which tenants read as, sees none of it.
WITH detached AS (
    SELECT day FROM tally.webhook_body_detached
)
SELECT (SELECT count(*) FROM tally.webhook_guard g FULL JOIN tally.webhook_events e
            ON e.number = g.number AND e.provider = g.provider AND e.event_id = g.dedup_key
          FULL JOIN tally.webhook_verdict v ON v.number = g.number
         WHERE g.number IS NULL OR (e.number IS NULL) = (v.number IS NULL))
     + (SELECT count(*) FROM tally.webhook_verdict v
         WHERE NOT EXISTS (SELECT 1 FROM detached d WHERE d.day = (v.received_at AT TIME ZONE 'UTC')::date))
     + (SELECT count(*) FROM tally.webhook_events e
          LEFT JOIN tally.webhook_body b ON b.received_at = e.received_at AND b.number = e.number
         WHERE b.number IS NULL
           AND NOT EXISTS (SELECT 1 FROM detached d WHERE d.day = (e.received_at AT TIME ZONE 'UTC')::date))
     + (SELECT count(*) FROM tally.webhook_body b
         WHERE NOT EXISTS (SELECT 1 FROM tally.webhook_events e
                            WHERE e.number = b.number AND e.received_at = b.received_at))
     + (SELECT count(*) FROM unnest(ARRAY['webhook_guard', 'webhook_events', 'webhook_verdict', 'webhook_body', 'webhook_body_default',
                                          'webhook_cursor', 'webhook_offset', 'webhook_poison']) AS hidden (name)
         WHERE has_table_privilege('tallystick_reader', 'tally.' || name, 'SELECT')) AS broken,
       (SELECT count(*) FROM tally.webhook_guard) AS checked;

-- name: payments
-- Every row of the log has its order, its own key and, once it was to be sent, its intent with that very amount; an order
-- has one live charge and a payment one live refund; attempts follow failures; what is completed was answered or found,
-- and belongs to one charge; a caller's key is that of a charge; every step is journaled once, as it was taken; and no
-- intent charges what the log has not.
WITH row AS (
    SELECT l.*, t.name AS tenant, o.reservation_token, o.amount_micros AS order_micros, o.currency AS order_currency
      FROM tally.payment_idempotency_log l
      LEFT JOIN tally.tenant t USING (tenant_id)
      LEFT JOIN tally.orders o ON o.tenant_id = l.tenant_id AND o.id = l.order_id
), step AS (
    SELECT tenant_id, idempotency_key AS key, lower(operation_type) || '.pending' AS subject, created_at AS at
      FROM tally.payment_idempotency_log
     UNION ALL
    SELECT tenant_id, idempotency_key, lower(operation_type) || '.' || lower(status), completed_at
      FROM tally.payment_idempotency_log WHERE status <> 'PENDING'
), journaled AS (
    SELECT j.tenant_id, decode(body.value ->> 'key', 'hex') AS key, j.subject, (body.value ->> 'at')::timestamptz AS at,
           body.value ->> 'was' AS was
      FROM tally.journal j
     CROSS JOIN LATERAL (SELECT convert_from(j.body, 'UTF8')::jsonb AS value) AS body
     WHERE j.subject IN ('charge.pending', 'charge.completed', 'charge.failed',
                         'refund.pending', 'refund.completed', 'refund.failed')
), asked AS (
    SELECT i.tenant_id, i.key, i.provider, i.purpose, convert_from(i.instruction, 'UTF8')::jsonb AS instruction
      FROM tally.intent i WHERE i.purpose IN ('charge', 'refund')
)
SELECT (SELECT count(*) FROM row r JOIN tally.payment_idempotency_log l USING (tenant_id, idempotency_key)
         WHERE r.tenant IS NULL OR r.reservation_token IS NULL
            OR r.idempotency_key IS DISTINCT FROM CASE r.operation_type
                   WHEN 'CHARGE' THEN tally.charge_key(r.tenant, l, r.reservation_token)
                   ELSE tally.refund_key(r.tenant, l) END
            OR (r.operation_type = 'CHARGE' AND (r.amount_micros <> r.order_micros OR r.currency <> r.order_currency)))
     + (SELECT count(*) FROM row r
         LEFT JOIN asked i ON i.tenant_id = r.tenant_id AND i.key = r.idempotency_key AND i.provider = r.provider
                          AND i.purpose = lower(r.operation_type)
         WHERE CASE WHEN i.key IS NULL THEN r.operation_type = 'CHARGE' OR r.status = 'COMPLETED'
                    ELSE (i.instruction ->> 'amount_micros')::bigint <> r.amount_micros
                         OR i.instruction ->> 'currency' <> r.currency END)
     + (SELECT count(*) FROM (SELECT 1 FROM row WHERE operation_type = 'CHARGE' AND status <> 'FAILED'
                               GROUP BY tenant_id, order_id HAVING count(*) > 1) AS twice)
     + (SELECT count(*) FROM (SELECT 1 FROM row WHERE operation_type = 'REFUND' AND status <> 'FAILED'
                               GROUP BY tenant_id, provider, payment_intent_id, part HAVING count(*) > 1) AS twice)
     + (SELECT count(*) FROM (SELECT 1 FROM row WHERE operation_type = 'CHARGE' AND payment_intent_id IS NOT NULL
                               GROUP BY tenant_id, provider, payment_intent_id HAVING count(*) > 1) AS twice)
     + (SELECT count(*) FROM row r
         WHERE r.operation_type = 'CHARGE' AND r.attempt > 1
           AND NOT EXISTS (SELECT 1 FROM tally.payment_idempotency_log b
                            WHERE b.operation_type = 'CHARGE' AND b.order_id = r.order_id AND b.tenant_id = r.tenant_id
                              AND b.attempt = r.attempt - 1 AND b.status = 'FAILED'))
     + (SELECT count(*) FROM tally.payment_key k
         WHERE NOT EXISTS (SELECT 1 FROM tally.payment_idempotency_log l
                            WHERE l.operation_type = 'CHARGE' AND l.order_id = k.order_id AND l.tenant_id = k.tenant_id
                              AND l.attempt = k.attempt AND (k.told IS NULL OR l.payment_intent_id IS NOT NULL)))
     -- A charge that is called failed, and that the provider once called done, must have been seen to fail since.
     + (SELECT count(*) FROM row r
         WHERE r.operation_type = 'CHARGE' AND r.status = 'FAILED' AND r.reason <> 'failed_at_the_provider'
           AND EXISTS (SELECT 1 FROM tally.attempt a
                        WHERE a.tenant_id = r.tenant_id AND a.key = r.idempotency_key AND a.provider = r.provider
                          AND a.answer = 'done' AND a.state IS DISTINCT FROM 'failed'))
     + (SELECT count(*) FROM asked i
         WHERE i.purpose = 'charge' AND i.instruction ->> 'description' LIKE 'or\_%'
           AND NOT EXISTS (SELECT 1 FROM tally.payment_idempotency_log l
                            WHERE l.idempotency_key = i.key AND l.tenant_id = i.tenant_id))
     + (SELECT count(*) FROM (SELECT * FROM step EXCEPT ALL SELECT tenant_id, key, subject, at FROM journaled) AS missing)
     -- One that failed after it was completed has that step in the journal alone.
     + (SELECT count(*) FROM (
            SELECT tenant_id, key, subject, at FROM journaled j
             WHERE NOT (j.subject LIKE '%.completed' AND EXISTS (
                        SELECT 1 FROM journaled f WHERE f.tenant_id = j.tenant_id AND f.key = j.key
                           AND f.subject LIKE '%.failed' AND f.was = 'COMPLETED'))
            EXCEPT ALL SELECT * FROM step) AS unexplained) AS broken,
       (SELECT count(*) FROM tally.payment_idempotency_log) AS checked;

-- name: checkout
-- Every payment that succeeded is PAID, refunded or owed: what the provider told of our payments has a receipt; what pays
-- an order is its amount, and pays it alone; what does not has its refund, or a person's eye; and the money of all of it is
-- where that says, to the micro. An event is compensated by a refund that was completed. Money in a dead letter is nowhere:
-- somebody has to look, and to retry it.
WITH receipt AS (
    SELECT r.*, o.status AS order_status, o.amount_micros AS order_micros, o.currency AS order_currency
      FROM tally.payment_receipt r LEFT JOIN tally.orders o ON o.tenant_id = r.tenant_id AND o.id = r.order_id
), refund AS (
    SELECT * FROM tally.payment_idempotency_log WHERE operation_type = 'REFUND'
), part AS (
    SELECT * FROM refund WHERE part IS NOT NULL
), newest AS (
    SELECT DISTINCT ON (tenant_id, provider, payment_intent_id) * FROM refund WHERE part IS NULL
     ORDER BY tenant_id, provider, payment_intent_id, attempt DESC
), place AS (
    SELECT tenant_id, 'checkout:taken:' || currency || ':' || provider AS account, -amount_micros AS micros FROM receipt
     UNION ALL
    SELECT tenant_id, 'checkout:owed:' || currency, amount_micros FROM receipt WHERE fate IN ('REFUND', 'REVIEW')
     UNION ALL
    SELECT tenant_id, 'checkout:owed:' || currency, amount_micros FROM part WHERE status <> 'FAILED'
     UNION ALL
    SELECT tenant_id, 'checkout:taken:' || currency || ':' || provider, amount_micros FROM refund
     WHERE status = 'COMPLETED'
     UNION ALL
    SELECT tenant_id, 'checkout:owed:' || currency, -amount_micros FROM refund WHERE status = 'COMPLETED'
), expected AS (
    SELECT tenant_id, account, sum(micros) AS micros FROM place GROUP BY tenant_id, account
), booked AS (
    SELECT tenant_id, id AS account, balance_micros::numeric AS micros FROM tally.account
     WHERE id LIKE 'checkout:taken:%' OR id LIKE 'checkout:owed:%'
)
SELECT (SELECT count(*) FROM expected e FULL JOIN booked b USING (tenant_id, account)
         WHERE coalesce(e.micros, 0) <> coalesce(b.micros, 0))
     + (SELECT count(*) FROM receipt
         WHERE order_status IS NULL
            OR (fate = 'PAID' AND (order_status <> 'PAID' OR amount_micros <> order_micros OR currency <> order_currency)))
     + (SELECT count(*) FROM tally.orders o
         WHERE o.status = 'PAID' AND NOT EXISTS (SELECT 1 FROM tally.payment_receipt r
                                                  WHERE r.order_id = o.id AND r.tenant_id = o.tenant_id
                                                    AND r.fate = 'PAID'))
     + (SELECT count(*) FROM receipt r
         LEFT JOIN newest n ON n.tenant_id = r.tenant_id AND n.provider = r.provider
                           AND n.payment_intent_id = r.payment_intent_id
         WHERE (r.fate = 'REFUND') <> (n.status IS NOT NULL)
            OR (n.status IS NOT NULL AND (n.amount_micros <> r.amount_micros OR n.currency <> r.currency))
            OR (n.status = 'FAILED' AND NOT EXISTS (SELECT 1 FROM tally.payment_break b
                                                     WHERE b.kind = 'refund_failed'
                                                       AND b.object_id = encode(n.idempotency_key, 'hex'))))
     -- What was asked for, and is not known to have failed, is counted, and is no more than was taken; and each is a refund.
     + (SELECT count(*) FROM receipt r
          LEFT JOIN (SELECT tenant_id, provider, payment_intent_id, sum(amount_micros) AS micros FROM part
                      WHERE status <> 'FAILED' GROUP BY tenant_id, provider, payment_intent_id) AS p
                 USING (tenant_id, provider, payment_intent_id)
         WHERE r.refunding_micros <> coalesce(p.micros, 0) OR r.refunding_micros > r.amount_micros
            OR (p.micros IS NOT NULL AND r.fate <> 'PAID'))
     + (SELECT count(*) FROM tally.refund_request q FULL JOIN part p USING (tenant_id, order_id, part)
         WHERE (q.amount_micros, q.currency, q.payment_intent_id, q.provider)
               IS DISTINCT FROM (p.amount_micros, p.currency, p.payment_intent_id, p.provider))
     + (SELECT count(*) FROM tally.webhook_events e
          JOIN tally.payment_idempotency_log l ON l.payment_intent_id = e.provider_id AND l.provider = e.provider
                                              AND l.operation_type = 'CHARGE'
         WHERE e.purpose = 'charge' AND e.state = 'moved' AND e.amount_micros BETWEEN 1 AND 1000000000000000
           AND e.status IN ('PROCESSED_OK', 'PROCESSED_COMPENSATED', 'DEAD_LETTER')
           AND NOT EXISTS (SELECT 1 FROM tally.payment_receipt r
                            WHERE r.payment_intent_id = e.provider_id AND r.provider = e.provider))
     + (SELECT count(*) FROM tally.webhook_events e
         WHERE e.status = 'PROCESSED_COMPENSATED'
           AND NOT EXISTS (SELECT 1 FROM receipt r JOIN refund f USING (tenant_id, provider, payment_intent_id)
                            WHERE r.event_number = e.number AND f.status IN ('COMPLETED', 'FAILED')
                              AND f.refund_id IS NOT NULL)) AS broken,
       (SELECT count(*) FROM tally.payment_receipt) AS checked;

-- name: unbounded_clearing
SELECT t.name, a.id FROM tally.account a JOIN tally.tenant t USING (tenant_id)
 WHERE a.id LIKE 'settlement:clearing:%' AND a.floor_micros IS NULL ORDER BY t.name, a.id LIMIT $1;
