-- name: journal
-- Commit order, not sequence order: a row whose transaction began before some other still runs is held back,
-- because that other one may yet commit rows that sort before it.
SELECT xid::text, number, tenant_id, subject AS topic, operation_id, body, digest
  FROM tally.journal
 WHERE (xid, number) > ($1::text::xid8, $2) AND xid < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY xid, number LIMIT $3;

-- name: outbox
SELECT xid::text, number, tenant_id, topic, operation_id, body, NULL::bytea AS digest
  FROM tally.outbox
 WHERE (xid, number) > ($1::text::xid8, $2) AND xid < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY xid, number LIMIT $3;
