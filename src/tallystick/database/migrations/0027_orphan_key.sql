-- What a lost life charged or gave back is found again by its key, before anything is sent under that key.
--
-- A caller who comes again after the books were read creates the order anew, with the key that it had: young by its row, and
-- perhaps forgotten by the provider. The statement that makes an intent asks here how old its key is. key_from and key_to:
-- between which keys the one lies that the provider wrote as reference; made_at: when the provider made the movement.
-- Rows of before are of payouts, which ask at their creation: they have none.
ALTER TABLE tally.orphan ADD COLUMN key_from bytea, ADD COLUMN key_to bytea, ADD COLUMN made_at timestamptz;
CREATE INDEX orphan_key ON tally.orphan (provider, key_from);

-- A second life may begin before the books were read after the first. For a provider that was never read only the newest
-- counted: what the first had lost was forgotten. Now all of them do, until one reading is complete.
CREATE OR REPLACE FUNCTION tally.unread(of text, OUT known_until timestamptz, OUT began_at timestamptz, OUT life bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT min(l.known_until), max(l.began_at), max(l.number)
      FROM tally.life l
     WHERE (l.provider IS NULL OR l.provider = of)
       AND l.number > coalesce((SELECT r.life FROM tally.reading r WHERE r.provider = of), 0)
$$;
