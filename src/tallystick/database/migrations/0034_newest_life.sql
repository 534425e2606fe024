-- Nobody but the newest life sends: since it began, however the ones before it are dated.
--
-- A life that began while the database's clock was hours ahead is dated then. The latest of such dates counted, so that after
-- the clock was set right nothing was proven absent, and no books were read, for hours. Lives begin in the order of their
-- numbers, so what the newest says holds for all before it; whoever finds that one dated ahead begins another (flows.reading).
--
-- The release before this one runs beside it, and waits as it did.
CREATE OR REPLACE FUNCTION tally.unread(of text, OUT known_until timestamptz, OUT began_at timestamptz, OUT life bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT min(l.known_until), (array_agg(l.began_at ORDER BY l.number DESC))[1], max(l.number)
      FROM tally.life l
     WHERE (l.provider IS NULL OR l.provider = of)
       AND l.number > coalesce((SELECT r.life FROM tally.reading r WHERE r.provider = of), 0)
$$;
