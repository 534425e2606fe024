-- name: wanted
-- What the service does to each table, by the rules that the table has itself: what refuses every change is only read and
-- added to, what is kept is never deleted from. Partitions are reached through their table.
SELECT c.relname AS name,
       CASE WHEN c.relname IN ('migration', 'migration_step') THEN ARRAY['SELECT']
            ELSE ARRAY['SELECT', 'INSERT']
                 || CASE WHEN r.is_append_only THEN '{}'::text[] ELSE ARRAY['UPDATE'] END
                 || CASE WHEN r.is_append_only OR r.is_kept OR c.relname = ANY ($1::text[]) THEN '{}'::text[]
                         ELSE ARRAY['DELETE'] END
       END AS privileges
  FROM pg_class c
 CROSS JOIN LATERAL (SELECT coalesce(bool_or(t.tgname = 'append_only'), false) AS is_append_only,
                            coalesce(bool_or(t.tgname = 'kept'), false) AS is_kept
                       FROM pg_trigger t WHERE t.tgrelid = c.oid) AS r
 WHERE c.relnamespace = 'tally'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
   -- Days of bodies that were taken out belong to whoever archives them.
   AND c.relname !~ '^webhook_body_[0-9]{8}$'
 ORDER BY c.relname;

-- name: lacking
-- Of those, what a role may not do.
SELECT name, array_agg(privilege) AS privileges
  FROM unnest($2::text[], $3::text[]) AS wanted (name, privilege)
 WHERE NOT has_table_privilege($1::text, format('tally.%I', name), privilege)
 GROUP BY name ORDER BY name;

-- name: unwalled
-- Tables behind row-level security that have no policy for the service, or one for another role.
SELECT c.relname AS name, p.polname IS NOT NULL AS has_policy
  FROM pg_class c LEFT JOIN pg_policy p ON p.polrelid = c.oid AND p.polname = 'service'
 WHERE c.relnamespace = 'tally'::regnamespace AND c.relrowsecurity AND NOT c.relispartition
   AND p.polroles IS DISTINCT FROM ARRAY[(SELECT oid FROM pg_roles WHERE rolname = $1)]
 ORDER BY c.relname;

-- name: functions
-- What only the owner could do, and the service has done for it by functions of the owner's.
SELECT p.oid::regprocedure::text AS name FROM pg_proc p
 WHERE p.pronamespace = 'tally'::regnamespace AND p.prosecdef AND NOT has_function_privilege($1::text, p.oid, 'EXECUTE');

-- name: sequences
-- Of nothing else may be asked whether it may be counted on: the planner is free to ask before it has looked.
SELECT c.oid::regclass::text AS name FROM pg_class c
 WHERE c.relnamespace = 'tally'::regnamespace
   AND CASE c.relkind WHEN 'S' THEN NOT has_sequence_privilege($1::text, c.oid, 'USAGE') ELSE false END;

-- name: role
SELECT rolsuper OR rolbypassrls OR rolcreaterole AS is_mighty,
       EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = 'tally'::regnamespace AND c.relowner = r.oid) AS is_owner
  FROM pg_roles r WHERE rolname = $1;

-- name: may_act_as_reader
SELECT pg_has_role($1::text, 'tallystick_reader',
                   CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'SET' ELSE 'MEMBER' END);

-- name: unseen
-- Tables of which this role does not see every row: it may not read them, or row-level security is in force for it without
-- a policy that lets everything through. Nobody can tell rows that are not there from rows that he is not shown.
SELECT c.relname AS name
  FROM pg_class c
 WHERE c.relnamespace = 'tally'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
   AND c.relname !~ '^webhook_body_[0-9]{8}$'
   AND (NOT has_table_privilege(c.oid, 'SELECT')
        OR (row_security_active(c.oid)
            AND (NOT EXISTS (SELECT FROM pg_policy p
                              WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd IN ('*', 'r')
                                AND pg_get_expr(p.polqual, p.polrelid) = 'true'
                                AND (p.polroles = '{0}' OR EXISTS (SELECT FROM unnest(p.polroles) AS r (oid)
                                                                    WHERE pg_has_role(r.oid, 'USAGE'))))
                 OR EXISTS (SELECT FROM pg_policy p
                             WHERE p.polrelid = c.oid AND NOT p.polpermissive AND p.polcmd IN ('*', 'r')))))
 ORDER BY c.relname;

-- name: might
-- As whom we work, and whether that one could change every rule: as the owner of tables, itself or by membership, or as a
-- superuser. Last, whether the role that is made for the service is there.
SELECT current_user::text AS name, r.rolsuper AS is_superuser,
       EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = 'tally'::regnamespace AND c.relkind IN ('r', 'p')
                  AND pg_has_role(r.oid, c.relowner, 'USAGE')) AS is_owner,
       EXISTS (SELECT FROM pg_roles s WHERE s.rolname = $1::text) AS has_service
  FROM pg_roles r WHERE r.rolname = current_user;
