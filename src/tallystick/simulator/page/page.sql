-- name: latest_movements
-- A payment that waits for its customer has no charge yet, and is what a person may want to decide.
SELECT dialect, kind, id, reference, parent, amount, currency, state, created_at
  FROM entry
 WHERE dialect = ?
   AND (kind IN ('charge', 'refund', 'transfer', 'payout', 'reversal')
        OR (kind = 'payment_intent' AND state IN ('waiting', 'moving')))
 ORDER BY created_at DESC, number DESC
 LIMIT ?;

-- name: latest_events
SELECT dialect, type, id, object_id, created_at FROM event ORDER BY number DESC LIMIT ?;

-- name: latest_deliveries
SELECT delivery.dialect, delivery.event_id, event.type, delivery.trick, delivery.state, delivery.attempts,
       delivery.note, delivery.due_at
  FROM delivery
  LEFT JOIN event ON event.dialect = delivery.dialect AND event.id = delivery.event_id
 ORDER BY delivery.number DESC
 LIMIT ?;

-- name: delivery_counts
SELECT dialect, state, count(*) FROM delivery GROUP BY dialect, state ORDER BY dialect, state;

-- name: last_event
-- Whatever a provider does by itself it announces: no new event, nothing happened.
SELECT coalesce(max(number), 0) FROM event;
