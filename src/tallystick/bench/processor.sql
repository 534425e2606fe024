-- name: processes
-- Our own session is asked for the answer, not for the work.
SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid();
