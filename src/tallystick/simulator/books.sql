-- name: schema
-- Times are integers, microseconds since 1970. Bodies are JSON, kept as the provider renders them.
-- Numbers that somebody may still hold when the books are emptied are never given again: they come from the ids.
CREATE TABLE IF NOT EXISTS entry (
    number     INTEGER PRIMARY KEY,
    dialect    TEXT NOT NULL,
    kind       TEXT NOT NULL,
    id         TEXT NOT NULL,
    reference  TEXT NOT NULL,
    parent     TEXT NOT NULL,
    amount     INTEGER NOT NULL,
    currency   TEXT NOT NULL,
    state      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    body       BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS entry_id ON entry (dialect, kind, id);
CREATE INDEX IF NOT EXISTS entry_reference ON entry (dialect, kind, reference) WHERE reference <> '';
CREATE INDEX IF NOT EXISTS entry_parent ON entry (dialect, kind, parent) WHERE parent <> '';
-- By time over all kinds: statements of account list them together.
CREATE INDEX IF NOT EXISTS entry_time ON entry (dialect, created_at, kind);

CREATE TABLE IF NOT EXISTS event (
    number     INTEGER PRIMARY KEY,
    dialect    TEXT NOT NULL,
    type       TEXT NOT NULL,
    id         TEXT NOT NULL,
    object_id  TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    body       BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS event_id ON event (dialect, id);
CREATE INDEX IF NOT EXISTS event_time ON event (dialect, created_at);

CREATE TABLE IF NOT EXISTS remembered (
    dialect     TEXT NOT NULL,
    scope       TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    first_at    INTEGER NOT NULL,
    reply       BLOB NOT NULL
);
-- Apart from the replies: keys come in no order, and each would touch another page of them.
CREATE UNIQUE INDEX IF NOT EXISTS remembered_key ON remembered (key, scope, dialect);

CREATE TABLE IF NOT EXISTS delivery (
    number   INTEGER PRIMARY KEY,
    dialect  TEXT NOT NULL,
    event_id TEXT NOT NULL,
    trick    TEXT NOT NULL,
    due_at   INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    state    TEXT NOT NULL,
    note     TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS delivery_due_of ON delivery (dialect, due_at) WHERE state = 'pending';
-- Of those only that keep their order: each webhook of the others would pay for it.
CREATE INDEX IF NOT EXISTS delivery_in_order ON delivery (dialect, number)
 WHERE state = 'pending' AND dialect IN ('adyen');
-- Few of many: each attempt asks for them, and a receiver that is down leaves thousands pending.
CREATE INDEX IF NOT EXISTS delivery_held ON delivery (dialect, number) WHERE trick = 'reordered' AND state = 'pending';
CREATE INDEX IF NOT EXISTS delivery_tried ON delivery (dialect, due_at) WHERE state = 'pending' AND attempts > 0;

-- Of books that are older.
DROP INDEX IF EXISTS delivery_due;
DROP INDEX IF EXISTS delivery_queue;

CREATE TABLE IF NOT EXISTS agenda (
    number       INTEGER PRIMARY KEY,
    dialect   TEXT NOT NULL,
    action    TEXT NOT NULL,
    object_id TEXT NOT NULL,
    due_at    INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS agenda_due ON agenda (due_at);

CREATE TABLE IF NOT EXISTS balance (
    dialect  TEXT NOT NULL,
    account  TEXT NOT NULL,
    currency TEXT NOT NULL,
    amount   INTEGER NOT NULL,
    PRIMARY KEY (dialect, account, currency)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS endpoint (
    dialect TEXT PRIMARY KEY,
    url     TEXT NOT NULL,
    secrets TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS setting (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- name: reset
-- The id counter and the clock stay: an id or a second once given to a client is never given again.
DELETE FROM entry;
DELETE FROM event;
DELETE FROM remembered;
DELETE FROM delivery;
DELETE FROM agenda;
DELETE FROM balance;
DELETE FROM endpoint;
DELETE FROM setting WHERE name NOT IN ('next_id', 'clock_offset');

-- name: insert_entry
INSERT INTO entry (number, dialect, kind, id, reference, parent, amount, currency, state, created_at, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: replace_entry
UPDATE entry
   SET reference = ?, parent = ?, amount = ?, currency = ?, state = ?, body = ?
 WHERE dialect = ? AND kind = ? AND id = ?;

-- name: get_entry
SELECT dialect, kind, id, reference, parent, amount, currency, state, created_at, body
  FROM entry
 WHERE dialect = ? AND kind = ? AND id = ?;

-- name: get_reference
-- Whatever kind of object has the id; the kinds are named so that the index is used.
SELECT reference FROM entry
 WHERE dialect = ? AND id = ?
   AND kind IN ('charge', 'refund', 'transfer', 'payout', 'reversal', 'payment_intent', 'quote', 'recipient')
 LIMIT 1;

-- name: entry_place
-- Where a cursor stands.
SELECT created_at, number FROM entry WHERE dialect = ? AND kind = ? AND id = ?;

-- name: find_entries
-- {which}, {time} and {order} come from the module's own tables, never from a request. The places are exclusive bounds.
SELECT dialect, kind, id, reference, parent, amount, currency, state, created_at, body
  FROM entry
 WHERE dialect = :dialect AND {which}
   AND {time} BETWEEN :since AND :until
   AND ({time}, number) > (:low_time, :low_number)
   AND ({time}, number) < (:high_time, :high_number)
 ORDER BY {time} {order}, number {order}
 LIMIT :limit OFFSET :offset;

-- name: total
SELECT coalesce(sum(amount), 0)
  FROM entry
 WHERE dialect = ? AND kind = ? AND parent = ? AND parent <> ''
   AND state IN (SELECT value FROM json_each(?));

-- name: insert_event
INSERT INTO event (number, dialect, type, id, object_id, created_at, body) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: get_event_body
SELECT body FROM event WHERE dialect = ? AND id = ?;

-- name: get_event
SELECT dialect, type, id, object_id, created_at, body FROM event WHERE dialect = ? AND id = ?;

-- name: event_place
SELECT created_at, number FROM event WHERE dialect = ? AND id = ?;

-- name: find_events
-- A type may end in `*`.
SELECT dialect, type, id, object_id, created_at, body
  FROM event
 WHERE dialect = :dialect
   AND created_at BETWEEN :since AND :until
   AND (created_at, number) > (:low_time, :low_number)
   AND (created_at, number) < (:high_time, :high_number)
   AND (:types IS NULL OR EXISTS (SELECT 1 FROM json_each(:types) WHERE event.type GLOB value))
   AND (:object_id IS NULL OR object_id = :object_id)
 ORDER BY created_at {order}, number {order}
 LIMIT :limit;

-- name: get_setting
SELECT value FROM setting WHERE name = ?;

-- name: put_setting
INSERT INTO setting (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: get_endpoint
SELECT url, secrets FROM endpoint WHERE dialect = ?;

-- name: put_endpoint
INSERT INTO endpoint (dialect, url, secrets) VALUES (?, ?, ?)
    ON CONFLICT (dialect) DO UPDATE SET url = excluded.url, secrets = excluded.secrets;

-- name: delete_endpoint
DELETE FROM endpoint WHERE dialect = ?;

-- name: insert_agenda
INSERT INTO agenda (dialect, action, object_id, due_at) VALUES (?, ?, ?, ?);

-- name: due_agenda
SELECT number, dialect, action, object_id FROM agenda WHERE due_at <= ? ORDER BY due_at, number LIMIT ?;

-- name: delete_agenda
DELETE FROM agenda WHERE number = ?;

-- name: next_agenda
SELECT min(due_at) FROM agenda;

-- name: get_balance
SELECT amount FROM balance WHERE dialect = ? AND account = ? AND currency = ?;

-- name: list_balances
SELECT currency, amount FROM balance WHERE dialect = ? AND account = ? ORDER BY currency;

-- name: put_balance
INSERT INTO balance (dialect, account, currency, amount) VALUES (?, ?, ?, ?)
    ON CONFLICT (dialect, account, currency) DO UPDATE SET amount = excluded.amount;

-- name: summary
SELECT dialect, kind, state, currency, count(*), sum(amount)
  FROM entry
 GROUP BY dialect, kind, state, currency
 ORDER BY dialect, kind, state, currency;

-- name: moved
-- A transfer has no transaction of its own in the books: there are many of them.
SELECT currency, sum(CASE kind WHEN 'transfer' THEN -amount ELSE amount END)
  FROM entry
 WHERE dialect = ? AND kind IN ('balance_transaction', 'transfer')
   AND coalesce(json_extract(CAST(body AS TEXT), '$._account'), '') = ?
 GROUP BY currency;

-- name: movements
-- What moved money, as the provider sees it; what came back later is still a movement.
SELECT number, dialect, kind, id, reference, parent, amount, currency, state, created_at
  FROM entry
 WHERE number > ? AND kind IN ('charge', 'refund', 'transfer', 'payout', 'reversal')
   AND state IN ('moving', 'moved', 'returned')
   AND (? = '' OR dialect = ?)
 ORDER BY number
 LIMIT ?;
