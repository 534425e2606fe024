-- LATERAL with OFFSET 0, or with a lock, is a probe of an index for each row, whatever the planner thinks of a table that
-- was empty when it planned: a plan is made once for each connection.

-- name: lock_orders
-- Given sorted, and locked in that order. Whoever wants to charge an order, cancel or sweep it, or call it paid, passes
-- here one after the other; the clock is read after each lock.
SELECT o.tenant_id, t.name AS tenant, o.id, o.status, o.reservation_token, o.amount_micros, o.currency, o.created_at,
       o.expires_at, clock_timestamp() AS now
  FROM unnest($1::text::integer[], $2::uuid[]) AS wanted (t, i)
 CROSS JOIN LATERAL (SELECT * FROM tally.orders o WHERE o.tenant_id = wanted.t AND o.id = wanted.i
                        FOR NO KEY UPDATE) AS o
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = o.tenant_id OFFSET 0) AS t;

-- name: newest
-- In a statement of its own, after the locks: it must see what the one before us committed. For each click: the newest charge
-- of its order, what its key was used for, and the charge that was, where it is an older one.
SELECT wanted.place, l.idempotency_key, l.attempt, l.provider, l.status, l.payment_intent_id, l.reason, l.claim_number,
       l.tries, l.due_at, l.awaits_customer, l.refusal, l.absent_at, l.is_confirmable, l.ask_first, i.instruction, i.since,
       i.first_sent_at, i.mark, tally.installation_id() AS installation, a.number, a.token, a.not_after,
       k.order_id AS bound_order, k.attempt AS bound_attempt, k.payment_method AS bound_method, k.told, k.reservation_token,
       b.idempotency_key AS older_idempotency_key, b.attempt AS older_attempt, b.provider AS older_provider,
       b.status AS older_status, b.payment_intent_id AS older_payment_intent_id, b.reason AS older_reason,
       b.claim_number AS older_claim_number, b.tries AS older_tries, b.due_at AS older_due_at,
       b.awaits_customer AS older_awaits_customer, b.refusal AS older_refusal, b.is_confirmable AS older_is_confirmable
  FROM unnest($1::text::integer[], $2::uuid[], $3::text::text[]) WITH ORDINALITY AS wanted (t, i, k, place)
  LEFT JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.operation_type = 'CHARGE' AND l.order_id = wanted.i AND l.tenant_id = wanted.t
                      ORDER BY l.attempt DESC LIMIT 1) AS l ON true
  LEFT JOIN LATERAL (SELECT * FROM tally.intent i
                      WHERE i.tenant_id = l.tenant_id AND i.key = l.idempotency_key AND i.provider = l.provider
                     OFFSET 0) AS i ON true
  LEFT JOIN LATERAL (SELECT * FROM tally.attempt a
                      WHERE a.tenant_id = i.tenant_id AND a.key = i.key AND a.provider = i.provider
                        AND a.number = i.attempts OFFSET 0) AS a ON true
  LEFT JOIN LATERAL (SELECT k.order_id, k.attempt, k.payment_method, k.told,
                            (SELECT o.reservation_token FROM tally.orders o
                              WHERE o.tenant_id = k.tenant_id AND o.id = k.order_id) AS reservation_token
                       FROM tally.payment_key k WHERE k.tenant_id = wanted.t AND k.key = wanted.k OFFSET 0) AS k ON true
  LEFT JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log b
                      WHERE k.order_id = wanted.i AND k.attempt <> l.attempt AND b.operation_type = 'CHARGE'
                        AND b.order_id = k.order_id AND b.tenant_id = wanted.t AND b.attempt = k.attempt OFFSET 0) AS b ON true;

-- name: log_charges
-- No ON CONFLICT: a second live charge of an order is a race that the order's lock excludes, or a bug; a key that somebody
-- used meanwhile for another order is found when the batch is run again. The trigger computes the provider's keys again and
-- asks for the intents, which the same transaction has just made.
WITH logged AS (
    INSERT INTO tally.payment_idempotency_log
           (tenant_id, idempotency_key, order_id, operation_type, attempt, amount_micros, currency, provider, due_at,
            created_at, author)
    SELECT t, k, o, 'CHARGE', attempt, amount, currency, provider, at + $9::interval, at, author
      FROM unnest($1::text::integer[], $2::bytea[], $3::uuid[], $4::text::integer[], $5::text::bigint[], $6::text::text[],
                  $7::text::text[], $8::timestamptz[], $10::text::text[])
           AS fresh (t, k, o, attempt, amount, currency, provider, at, author)
)
INSERT INTO tally.payment_key (tenant_id, key, order_id, attempt, payment_method, told)
SELECT * FROM unnest($11::text::integer[], $12::text::text[], $13::uuid[], $14::text::integer[], $15::bytea[],
                     $16::text::text[]);

-- name: shown
-- is_unread: more may be lost than a promotion loses ($2), and the books do not tell yet. has_orphans: they showed charges that
-- nothing here explains.
SELECT g.provider,
       (SELECT u.life IS NOT NULL AND u.began_at - u.known_until NOT BETWEEN -$2::interval AND $2::interval
          FROM tally.unread(g.provider) AS u) AS is_unread,
       EXISTS (SELECT FROM tally.orphan o WHERE o.provider = g.provider AND o.purpose = 'charge') AS has_orphans
  FROM unnest($1::text[]) AS g (provider);

-- name: shown_under
SELECT g.place
  FROM unnest($1::text[], $2::bytea[]) WITH ORDINALITY AS g (provider, key, place)
 CROSS JOIN LATERAL (SELECT o.key_to, o.state FROM tally.orphan o
                      WHERE o.provider = g.provider AND o.key_from <= g.key
                      ORDER BY o.key_from DESC LIMIT 1) AS o
 WHERE g.key <= o.key_to AND o.state <> 'failed';

-- name: ask_first
UPDATE tally.payment_idempotency_log l SET ask_first = true
 WHERE l.idempotency_key = ANY ($1::bytea[]) AND l.operation_type = 'CHARGE' AND l.status = 'PENDING';

-- name: bind
-- Keys that join a charge which is there already.
INSERT INTO tally.payment_key (tenant_id, key, order_id, attempt, payment_method, told)
SELECT * FROM unnest($1::text::integer[], $2::text::text[], $3::uuid[], $4::text::integer[], $5::bytea[], $6::text::text[]);

-- name: claim_again
-- A pending charge that somebody asks about, or sends again, now. Later answers to earlier claims are evidence only.
UPDATE tally.payment_idempotency_log l
   SET claim_number = given.claim, due_at = clock_timestamp() + $5::interval, tries = given.tries,
       provider_response = coalesce(given.response, l.provider_response)
  FROM unnest($1::integer[], $2::bytea[], $3::integer[], $4::integer[], $6::bytea[])
       AS given (t, k, claim, tries, response)
 WHERE l.idempotency_key = given.k AND l.tenant_id = given.t AND l.status || '' = 'PENDING';

-- name: fence
-- Given sorted, and locked in that order, before the attempts: as everybody does.
SELECT l.tenant_id, l.idempotency_key, l.claim_number, l.status, l.payment_intent_id, l.reason, l.awaits_customer, l.refusal
  FROM unnest($1::text::integer[], $2::bytea[]) AS given (t, k)
 CROSS JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.idempotency_key = given.k AND l.tenant_id = given.t FOR NO KEY UPDATE) AS l;

-- name: record
-- Matching the claim number fences whoever lost it. What the answer was is kept as it was first told: a payment that fails
-- later was there.
UPDATE tally.payment_idempotency_log l
   SET status = g.status, awaits_customer = CASE l.status WHEN 'PENDING' THEN g.awaits ELSE l.awaits_customer END,
       refusal = CASE l.status WHEN 'PENDING' THEN g.refusal ELSE l.refusal END, is_confirmable = g.is_confirmable,
       payment_intent_id = coalesce(g.payment, l.payment_intent_id), reason = g.reason,
       due_at = coalesce(g.due_at, l.due_at), tries = g.tries,
       provider_response = coalesce(g.response, l.provider_response), absent_at = coalesce(g.absent_at, l.absent_at),
       completed_at = CASE g.status WHEN 'PENDING' THEN NULL ELSE clock_timestamp() END, ask_first = g.ask_first
  FROM unnest($1::text::integer[], $2::bytea[], $3::text::integer[], $4::text::text[], $5::text::text[],
              $6::text::text[], $7::timestamptz[], $8::text::integer[], $9::bytea[], $10::text::boolean[], $11::bytea[],
              $12::timestamptz[], $13::text::boolean[], $14::text::boolean[])
       AS g (t, k, claim, status, payment, reason, due_at, tries, response, awaits, refusal, absent_at, is_confirmable,
             ask_first)
 WHERE l.idempotency_key = g.k AND l.tenant_id = g.t AND l.claim_number = g.claim;

-- name: closed
UPDATE tally.payment_idempotency_log l SET is_confirmable = false
 WHERE l.idempotency_key = $2 AND l.tenant_id = $1 AND l.status || '' = 'FAILED';

-- name: claim_due
-- What nobody has finished, by the database's clock. SKIP LOCKED: two workers never share a row. By place (ctid), which
-- a locked row keeps. $4: only what must be asked first. $5: what was due then, so that a run over all of it ends.
WITH claimed AS (
    UPDATE tally.payment_idempotency_log l
       SET claim_number = l.claim_number + 1, due_at = clock_timestamp() + $3::interval
     WHERE l.ctid = ANY (ARRAY(SELECT ctid FROM tally.payment_idempotency_log
                                WHERE operation_type = 'CHARGE' AND status = 'PENDING' AND due_at <= statement_timestamp()
                                  AND due_at <= coalesce($5::timestamptz, 'infinity') AND (ask_first OR NOT $4)
                                  AND provider = ANY ($2::text[])
                                ORDER BY due_at LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING l.*
)
SELECT l.tenant_id, l.order_id, l.idempotency_key, l.attempt, l.provider, l.status, l.payment_intent_id, l.reason,
       l.claim_number, l.tries, clock_timestamp() AS due_at, l.awaits_customer, l.refusal, l.absent_at, l.is_confirmable,
       l.ask_first, i.instruction, t.name AS tenant,
       o.id, o.status AS order_status, o.reservation_token, o.amount_micros, o.currency, o.created_at,
       o.expires_at, least(o.created_at, i.since, (tally.unread(l.provider)).known_until) AS since, clock_timestamp() AS now
  FROM claimed l
 CROSS JOIN LATERAL (SELECT * FROM tally.orders o WHERE o.tenant_id = l.tenant_id AND o.id = l.order_id OFFSET 0) AS o
 CROSS JOIN LATERAL (SELECT name FROM tally.tenant t WHERE t.tenant_id = l.tenant_id OFFSET 0) AS t
 CROSS JOIN LATERAL (SELECT * FROM tally.intent i
                      WHERE i.tenant_id = l.tenant_id AND i.key = l.idempotency_key AND i.provider = l.provider
                     OFFSET 0) AS i;

-- name: of_order
SELECT l.tenant_id, l.order_id, l.idempotency_key, l.operation_type, l.attempt, l.amount_micros, l.currency, l.provider,
       l.payment_intent_id, l.refund_id, l.status, l.reason, l.provider_response, l.claim_number, l.tries, l.due_at,
       l.created_at, l.completed_at
  FROM tally.payment_idempotency_log l
 WHERE l.tenant_id = $1 AND l.order_id = $2 AND l.operation_type = 'CHARGE'
 ORDER BY l.attempt;

-- name: order_with_payment
SELECT o.*, l.status AS payment_status, l.payment_intent_id, l.attempt, l.reason,
       l.awaits_customer AND p.is_there IS NULL AS awaits_customer, r.status AS refund_status,
       r.payment_intent_id AS refunded_payment, r.refund_id, r.amount_micros AS refund_micros,
       r.currency AS refund_currency, coalesce(r.reason, q.reason, w.reason) AS refund_reason,
       r.created_at AS refund_created_at,
       r.completed_at AS refund_completed_at, r.reason AS refund_stands, q.key AS refund_part
  FROM unnest($2::uuid[]) AS wanted (i)
 CROSS JOIN LATERAL (SELECT * FROM tally.orders o WHERE o.tenant_id = $1 AND o.id = wanted.i OFFSET 0) AS o
  LEFT JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log l
                      WHERE l.operation_type = 'CHARGE' AND l.order_id = o.id AND l.tenant_id = o.tenant_id
                      ORDER BY l.attempt DESC LIMIT 1) AS l ON true
  -- The provider took the money: whatever it waited for has come.
  LEFT JOIN LATERAL (SELECT true AS is_there FROM tally.payment_receipt p
                      WHERE l.awaits_customer AND p.order_id = o.id AND p.tenant_id = o.tenant_id
                        AND p.payment_intent_id = l.payment_intent_id AND p.provider = l.provider OFFSET 0) AS p ON true
  -- In the order of the index that is meant: without it another is as good while there are no refunds, and bad later.
  LEFT JOIN LATERAL (SELECT * FROM tally.payment_idempotency_log r
                      WHERE r.operation_type = 'REFUND' AND r.order_id = o.id AND r.tenant_id = o.tenant_id
                      ORDER BY r.created_at DESC, r.attempt DESC LIMIT 1) AS r ON true
  LEFT JOIN LATERAL (SELECT q.reason, q.key FROM tally.refund_request q
                      WHERE q.order_id = r.order_id AND q.tenant_id = r.tenant_id AND q.part = r.part OFFSET 0) AS q ON true
  LEFT JOIN LATERAL (SELECT w.reason FROM tally.payment_receipt w
                      WHERE w.order_id = r.order_id AND w.tenant_id = r.tenant_id
                        AND w.payment_intent_id = r.payment_intent_id AND w.provider = r.provider
                     -- Else all receipts of the tenant are read and compared, planned while there were none.
                     OFFSET 0) AS w ON true;

-- name: order_of_payment
SELECT l.order_id FROM tally.payment_idempotency_log l
 WHERE l.payment_intent_id = $2 AND l.tenant_id = $1
 ORDER BY l.created_at LIMIT 1;

-- name: waiting
-- How many charges are pending past their time, up to a bound, and how long the oldest: 0 if none is.
SELECT (SELECT count(*) FROM (SELECT 1 FROM tally.payment_idempotency_log
                               WHERE operation_type = 'CHARGE' AND status = 'PENDING' LIMIT $1) AS p) AS pending,
       (SELECT greatest(coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0), 0)::float8
          FROM tally.payment_idempotency_log WHERE operation_type = 'CHARGE' AND status = 'PENDING') AS oldest_seconds;
