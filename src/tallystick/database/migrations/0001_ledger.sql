-- The ledger: tenants, accounts, operations under their keys, entries, journal and outbox.
--
-- Rules live here where the database can hold them. Row-level foreign keys on the four tables of the hot path
-- were measured at 35 microseconds per operation; the statement-level triggers below hold the same rules
-- (an entry names an account and an operation of its own tenant, and neither can go away) for about 8.
-- See docs/decisions/0003-set-based-guards.md.

CREATE SCHEMA IF NOT EXISTS tally;

CREATE TABLE tally.tenant (
    tenant_id  integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    created_at timestamptz NOT NULL DEFAULT now()
);

INSERT INTO tally.tenant (name) VALUES ('default');

-- A key is 256 random bits, so a plain digest of it cannot be searched; only its first characters are shown.
CREATE TABLE tally.api_key (
    tenant_id  integer NOT NULL REFERENCES tally.tenant,
    prefix     text NOT NULL,
    digest     bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
    role       text NOT NULL CHECK (role IN ('admin', 'operator', 'approver', 'viewer', 'auditor')),
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz,
    PRIMARY KEY (tenant_id, prefix)
);

-- balance_micros and entries are moved by the trigger on tally.entry and by nothing else.
-- Half-filled pages let an update stay on its page (HOT), so that a busy account does not grow its indexes.
CREATE TABLE tally.account (
    tenant_id      integer NOT NULL REFERENCES tally.tenant,
    number         bigint GENERATED ALWAYS AS IDENTITY,
    id             text COLLATE "C" NOT NULL CHECK (octet_length(id) BETWEEN 1 AND 200),
    currency       text COLLATE "C" NOT NULL CHECK (octet_length(currency) = 3),
    floor_micros   bigint,
    balance_micros bigint NOT NULL DEFAULT 0,
    entries        bigint NOT NULL DEFAULT 0,
    limited        boolean NOT NULL DEFAULT false,
    posted_at      timestamptz NOT NULL DEFAULT 'epoch',
    created_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, number),
    UNIQUE (tenant_id, id),
    CONSTRAINT solvency CHECK (floor_micros IS NULL OR balance_micros >= floor_micros)
) WITH (fillfactor = 50);

CREATE TABLE tally.velocity_limit (
    tenant_id      integer NOT NULL,
    account_number bigint NOT NULL,
    window_seconds integer NOT NULL CHECK (window_seconds > 0),
    max_count      bigint CHECK (max_count >= 0),
    max_sum_micros bigint CHECK (max_sum_micros >= 0),
    PRIMARY KEY (tenant_id, account_number, window_seconds),
    FOREIGN KEY (tenant_id, account_number) REFERENCES tally.account (tenant_id, number),
    CHECK (max_count IS NOT NULL OR max_sum_micros IS NOT NULL)
);

-- One row is one used key and its answer. id is a digest of tenant and key, so this primary key is what makes
-- a second effect under the same key impossible.
CREATE TABLE tally.operation (
    tenant_id integer NOT NULL,
    id        uuid NOT NULL,
    key       text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
    request   bytea NOT NULL,
    body      bytea NOT NULL,
    at        timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id)
);

-- A hold is released once and a transaction refunded once: the primary key says so.
CREATE TABLE tally.closing (
    tenant_id    integer NOT NULL,
    closed_id    uuid NOT NULL,
    operation_id uuid NOT NULL,
    PRIMARY KEY (tenant_id, closed_id),
    FOREIGN KEY (tenant_id, closed_id) REFERENCES tally.operation,
    FOREIGN KEY (tenant_id, operation_id) REFERENCES tally.operation
);

CREATE TABLE tally.entry (
    tenant_id      integer NOT NULL,
    account_number bigint NOT NULL,
    number         bigint NOT NULL,
    operation_id   uuid NOT NULL,
    amount_micros  bigint NOT NULL CHECK (amount_micros <> 0),
    balance_micros bigint NOT NULL,
    at             timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, account_number, number)
);

-- Sequence order is not commit order: readers go by (xid, number) and stop at the oldest running transaction.
CREATE TABLE tally.journal (
    xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
    number       bigint GENERATED ALWAYS AS IDENTITY,
    tenant_id    integer NOT NULL,
    subject      text NOT NULL,
    operation_id uuid,
    body         bytea,
    digest       bytea NOT NULL CHECK (octet_length(digest) = 32),
    PRIMARY KEY (xid, number),
    -- A step of an operation is described by the operation's own row; any other step brings its body.
    CHECK ((operation_id IS NULL) <> (body IS NULL))
);

CREATE TABLE tally.outbox (
    xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
    number       bigint GENERATED ALWAYS AS IDENTITY,
    tenant_id    integer NOT NULL,
    topic        text NOT NULL,
    operation_id uuid,
    body         bytea,
    PRIMARY KEY (xid, number),
    CHECK ((operation_id IS NULL) <> (body IS NULL))
);

-- Every operation enters journal and outbox because it exists, not because somebody remembered to write them.
-- The digest is that of core/audit.py: length-prefixed tenant, subject, request and answer.
CREATE FUNCTION tally.operation_recorded() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO tally.journal (tenant_id, subject, operation_id, digest)
    SELECT f.tenant_id, 'operation', f.id,
           sha256('tallystick/journal/1'::bytea || t.prefix || int4send(octet_length(f.request)) || f.request
                  || int4send(octet_length(f.body)) || f.body)
      FROM (SELECT tenant_id, int4send(octet_length(name)) || convert_to(name, 'UTF8')
                              || int4send(9) || 'operation'::bytea AS prefix FROM tally.tenant) AS t
      JOIN fresh f USING (tenant_id);
    INSERT INTO tally.outbox (tenant_id, topic, operation_id)
    SELECT tenant_id, 'operation.committed', id FROM fresh;
    RETURN NULL;
END $$;

CREATE TRIGGER operation_recorded AFTER INSERT ON tally.operation
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.operation_recorded();

-- Conservation, the running balance, and the walls between tenants, for all entries of a statement at once.
-- The look-up of the operation is a scalar subquery on purpose: always a probe of its index, however large it grew.
CREATE FUNCTION tally.entry_posted() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    fault record;
BEGIN
    WITH chained AS (
        SELECT f.tenant_id, f.account_number, f.number, f.amount_micros, f.balance_micros, f.at,
               lag(f.balance_micros) OVER account_order AS before,
               lead(f.number) OVER account_order IS NULL AS is_last
          FROM fresh f
        WINDOW account_order AS (PARTITION BY f.tenant_id, f.account_number ORDER BY f.number)
    ), change AS (
        SELECT tenant_id, account_number, min(number) AS first_number, count(*) AS entries, min(at) AS first_at,
               max(at) AS last_at,
               bool_and(before IS NULL OR balance_micros - amount_micros = before) AS is_chained,
               max(balance_micros - amount_micros) FILTER (WHERE before IS NULL) AS opening,
               max(balance_micros) FILTER (WHERE is_last) AS closing
          FROM chained GROUP BY tenant_id, account_number
    ), moved AS (
        UPDATE tally.account a
           SET balance_micros = c.closing, entries = a.entries + c.entries, posted_at = c.last_at
          FROM change c
         WHERE a.tenant_id = c.tenant_id AND a.number = c.account_number
           AND c.is_chained AND c.opening = a.balance_micros AND c.first_number = a.entries + 1
           AND c.first_at >= a.posted_at
        RETURNING a.tenant_id, a.number, a.currency
    ), movement AS (
        SELECT f.tenant_id, f.operation_id, sum(f.amount_micros) <> 0 AS is_unbalanced,
               (SELECT o.id FROM tally.operation o WHERE o.tenant_id = f.tenant_id AND o.id = f.operation_id) IS NULL
                   AS is_orphan
          FROM fresh f JOIN moved m ON m.tenant_id = f.tenant_id AND m.number = f.account_number
         GROUP BY f.tenant_id, f.operation_id, m.currency
    )
    SELECT (SELECT count(*) FROM change) - (SELECT count(*) FROM moved) AS misplaced,
           count(*) FILTER (WHERE is_unbalanced) AS unbalanced, count(*) FILTER (WHERE is_orphan) AS orphans
      INTO fault FROM movement;
    IF fault.misplaced <> 0 THEN
        RAISE EXCEPTION 'tally: % account(s) are not this tenant''s, or their entries do not continue the '
                        'running balance', fault.misplaced USING ERRCODE = 'TS001';
    END IF;
    IF fault.unbalanced <> 0 THEN
        RAISE EXCEPTION 'tally: conservation: % operation(s) do not sum to zero per currency', fault.unbalanced
              USING ERRCODE = 'TS002';
    END IF;
    IF fault.orphans <> 0 THEN
        RAISE EXCEPTION 'tally: entries of % operation(s) that their tenant does not have', fault.orphans
              USING ERRCODE = 'TS003';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER entry_posted AFTER INSERT ON tally.entry
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.entry_posted();

-- Rows that other code writes about an operation must name one of their own tenant. Those written by
-- operation_recorded (depth 1) come from the operation itself.
CREATE FUNCTION tally.names_own_operation() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM fresh f
         WHERE f.operation_id IS NOT NULL
           AND (SELECT o.id FROM tally.operation o WHERE o.tenant_id = f.tenant_id AND o.id = f.operation_id) IS NULL
    ) THEN
        RAISE EXCEPTION 'tally: a row of % names an operation that its tenant does not have', TG_TABLE_NAME
              USING ERRCODE = 'TS003';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER names_own_operation AFTER INSERT ON tally.journal REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION tally.names_own_operation();
CREATE TRIGGER names_own_operation AFTER INSERT ON tally.outbox REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION tally.names_own_operation();

-- What is written stays as it is: history can be corrected only by a further operation.
CREATE FUNCTION tally.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'tally: % of tally.% is refused: %', TG_OP, TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'TS004';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.operation
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('its rows are never changed');
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.closing
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('its rows are never changed');
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.entry
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('its rows are never changed');
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.journal
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('its rows are never changed');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.account
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('accounts are kept for their history');
CREATE TRIGGER identity BEFORE UPDATE ON tally.account FOR EACH ROW
    WHEN (old.tenant_id <> new.tenant_id OR old.number <> new.number OR old.id <> new.id
          OR old.currency <> new.currency)
    EXECUTE FUNCTION tally.refuse_change('what an account is never changes');
CREATE TRIGGER balance BEFORE UPDATE ON tally.account FOR EACH ROW
    WHEN (pg_trigger_depth() = 0
          AND (old.balance_micros <> new.balance_micros OR old.entries <> new.entries))
    EXECUTE FUNCTION tally.refuse_change('a balance is moved by entries alone');
CREATE TRIGGER balance_at_birth BEFORE INSERT ON tally.account FOR EACH ROW
    WHEN (new.balance_micros <> 0 OR new.entries <> 0)
    EXECUTE FUNCTION tally.refuse_change('an account begins empty');

-- The number of an account's last entry at or before a moment, by bisection: times never go back within an
-- account (entry_posted sees to it), so the primary key is index enough.
CREATE FUNCTION tally.entry_number_at(tenant integer, account bigint, moment timestamptz)
RETURNS bigint LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
DECLARE
    low bigint := 0;
    high bigint;
    middle bigint;
    found_at timestamptz;
BEGIN
    SELECT coalesce(max(number), 0) INTO high FROM tally.entry
     WHERE tenant_id = tenant AND account_number = account;
    WHILE low < high LOOP
        middle := (low + high + 1) / 2;
        SELECT at INTO found_at FROM tally.entry
         WHERE tenant_id = tenant AND account_number = account AND number = middle;
        IF found_at <= moment THEN low := middle; ELSE high := middle - 1; END IF;
    END LOOP;
    RETURN low;
END $$;

-- Reads for a tenant run as this role, which row-level security binds: a query that forgets its WHERE sees
-- that tenant's rows and no others; without a tenant set it sees none.
DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'tallystick_reader') THEN
        BEGIN
            CREATE ROLE tallystick_reader NOLOGIN NOBYPASSRLS;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;  -- another database of this cluster was quicker
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'tally: this user may not create the role tallystick_reader'
                      USING HINT = 'Have an administrator run: CREATE ROLE tallystick_reader NOLOGIN NOBYPASSRLS; '
                                   'GRANT tallystick_reader TO ' || quote_ident(current_user) || ';';
        END;
    END IF;
    IF (SELECT rolbypassrls OR rolsuper FROM pg_roles WHERE rolname = 'tallystick_reader') THEN
        RAISE EXCEPTION 'tally: the role tallystick_reader is not bound by row-level security'
              USING HINT = 'Have an administrator run: ALTER ROLE tallystick_reader NOBYPASSRLS NOSUPERUSER;';
    END IF;
    -- From PostgreSQL 16 on, who creates a role may administer it but not yet act as it.
    IF NOT pg_has_role(current_user, 'tallystick_reader',
                       CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'SET' ELSE 'MEMBER' END)
    THEN
        EXECUTE format('GRANT tallystick_reader TO %I', current_user);
    END IF;
END $$;

GRANT USAGE ON SCHEMA tally TO tallystick_reader;
GRANT SELECT ON tally.tenant, tally.account, tally.velocity_limit, tally.operation, tally.closing, tally.entry,
                tally.journal, tally.outbox TO tallystick_reader;
GRANT SELECT (tenant_id, prefix, role, created_at, revoked_at) ON tally.api_key TO tallystick_reader;
GRANT EXECUTE ON FUNCTION tally.entry_number_at TO tallystick_reader;

CREATE FUNCTION tally.current_tenant() RETURNS integer LANGUAGE sql STABLE AS
    $$ SELECT nullif(current_setting('tally.tenant', true), '')::integer $$;
GRANT EXECUTE ON FUNCTION tally.current_tenant TO tallystick_reader;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['tenant', 'api_key', 'account', 'velocity_limit', 'operation', 'closing', 'entry',
                                'journal', 'outbox'] LOOP
        EXECUTE format('ALTER TABLE tally.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY own_tenant ON tally.%I FOR SELECT TO tallystick_reader '
                       'USING (tenant_id = (SELECT tally.current_tenant()))', name);
    END LOOP;
END $$;
