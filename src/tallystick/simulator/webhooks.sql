-- name: insert
INSERT INTO delivery (number, dialect, event_id, trick, due_at, attempts, state, note)
VALUES (?, ?, ?, ?, ?, 0, ?, '');

-- name: release_held
-- What was held back goes out when one that came later has been sent.
UPDATE delivery INDEXED BY delivery_held SET trick = '', due_at = ?
 WHERE dialect = ? AND number < ? AND trick = 'reordered' AND state = 'pending';

-- name: held
SELECT 1 FROM delivery INDEXED BY delivery_held WHERE trick = 'reordered' AND state = 'pending' LIMIT 1;

-- name: due
-- By dialect: the queue of one whose receiver is down must not hide the others'. After what was begun already.
SELECT number, dialect, event_id, trick, attempts, due_at
  FROM delivery
 WHERE state = 'pending' AND dialect = ? AND due_at <= ? AND (due_at, number) > (?, ?)
 ORDER BY due_at, number
 LIMIT ?;

-- name: head
-- The oldest of a queue that keeps its order, however late its next attempt is.
SELECT number, dialect, event_id, trick, attempts, due_at
  FROM delivery INDEXED BY delivery_in_order
 WHERE state = 'pending' AND dialect IN ('adyen') AND dialect = ? AND due_at <= ?
 ORDER BY number
 LIMIT 1;

-- name: blocked
-- A queue that keeps its order waits for its failed head.
SELECT 1 FROM delivery INDEXED BY delivery_tried
 WHERE state = 'pending' AND attempts > 0 AND dialect = ? AND due_at > ? LIMIT 1;

-- name: next
SELECT min(due_at) FROM delivery WHERE state = 'pending' AND dialect = ? AND due_at > ?;

-- name: record
UPDATE delivery SET state = ?, attempts = ?, due_at = ?, note = ?, trick = ? WHERE number = ?;

-- name: list
SELECT number, dialect, event_id, trick, due_at, attempts, state, note
  FROM delivery
 WHERE (? = '' OR dialect = ?) AND (? = '' OR state = ?)
 ORDER BY number DESC
 LIMIT ?;
