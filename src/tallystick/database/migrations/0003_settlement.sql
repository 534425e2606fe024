-- Settlements: payouts that are claimed, sent and recovered when stuck.
--
-- What a settlement is (tally.settlement) never changes and is written once; how it stands (tally.settlement_state) is a
-- narrow row that changes about twice. The claim looks at partial indexes of the unfinished rows alone, so it costs the
-- same however many are finished.

-- The platform's part, by tenant and currency. '' is every currency without a row of its own: a fixed amount needs one.
CREATE TABLE tally.settlement_policy (
    tenant_id      integer NOT NULL REFERENCES tally.tenant,
    currency       text COLLATE "C" NOT NULL CHECK (octet_length(currency) IN (0, 3)),
    percent_ppm    integer NOT NULL CHECK (percent_ppm BETWEEN 0 AND 1000000),
    fixed_micros   bigint NOT NULL CHECK (fixed_micros >= 0),
    minimum_micros bigint NOT NULL CHECK (minimum_micros >= 0),
    changed_by     text NOT NULL,
    changed_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, currency),
    CHECK (currency <> '' OR (fixed_micros = 0 AND minimum_micros = 0))
);

CREATE TABLE tally.settlement (
    tenant_id      integer NOT NULL REFERENCES tally.tenant,
    number         bigint GENERATED ALWAYS AS IDENTITY,
    -- A digest of attribution and squad: the primary identity, so the same payout cannot be created twice.
    id             uuid NOT NULL,
    attribution_id text COLLATE "C" NOT NULL CHECK (octet_length(attribution_id) BETWEEN 1 AND 200),
    squad_id       text COLLATE "C" NOT NULL CHECK (octet_length(squad_id) BETWEEN 1 AND 120),
    currency       text COLLATE "C" NOT NULL CHECK (octet_length(currency) = 3),
    gross_micros   bigint NOT NULL CHECK (gross_micros > 0),
    fee_micros     bigint NOT NULL CHECK (fee_micros >= 0),
    net_micros     bigint NOT NULL CHECK (net_micros > 0),
    -- What is sent: the part of net that the provider can write. The rest stays payable.
    amount_micros  bigint NOT NULL CHECK (amount_micros > 0 AND amount_micros <= net_micros),
    provider       text COLLATE "C" NOT NULL CHECK (octet_length(provider) BETWEEN 1 AND 40),
    destination    text NOT NULL CHECK (octet_length(destination) BETWEEN 1 AND 4000),
    generation     integer NOT NULL DEFAULT 0 CHECK (generation >= 0),
    key            bytea NOT NULL CHECK (octet_length(key) = 32),
    created_at     timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, number),
    CONSTRAINT settlement_tenant_id_id_key UNIQUE (id, tenant_id),
    CONSTRAINT settlement_tenant_id_key_key UNIQUE (key, tenant_id),
    CONSTRAINT net_is_gross_less_fee CHECK (net_micros = gross_micros - fee_micros)
);

CREATE TABLE tally.settlement_state (
    tenant_id        integer NOT NULL,
    number           bigint NOT NULL,
    provider         text COLLATE "C" NOT NULL,
    status           text NOT NULL DEFAULT 'pending'
                     CHECK (status IN ('pending', 'processing', 'transferred', 'failed', 'disputed')),
    -- In every later UPDATE: a worker that lost its claim can no longer write.
    claim_number     integer NOT NULL DEFAULT 0 CHECK (claim_number >= 0),
    claim_token      uuid,
    claimed_by       text,
    processing_since timestamptz,
    claimed_at       timestamptz,
    -- When somebody else may take a processing row over.
    due_at           timestamptz,
    tries            integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    -- It may have been sent by a life of this database that was lost: never sent before the provider was asked.
    ask_first        boolean NOT NULL DEFAULT false,
    transfer_id      text,
    reason           text,
    changed_at       timestamptz NOT NULL,
    -- The ledger operation of the last result.
    result_id        uuid,
    PRIMARY KEY (tenant_id, number),
    FOREIGN KEY (tenant_id, number) REFERENCES tally.settlement,
    CHECK (status <> 'transferred' OR transfer_id IS NOT NULL),
    CHECK (status NOT IN ('failed', 'disputed') OR reason IS NOT NULL),
    CHECK (status <> 'processing' OR (due_at IS NOT NULL AND processing_since IS NOT NULL AND claim_number > 0))
) WITH (fillfactor = 70);

CREATE INDEX settlement_pending ON tally.settlement_state (provider, number) WHERE status = 'pending';
CREATE INDEX settlement_processing ON tally.settlement_state (provider, due_at) WHERE status = 'processing';
CREATE INDEX settlement_review ON tally.settlement_state (tenant_id, status, number)
    WHERE status IN ('failed', 'disputed');
CREATE INDEX settlement_transfer ON tally.settlement_state (transfer_id) WHERE transfer_id IS NOT NULL;
-- For reconciliation, which asks for days: almost nothing to keep up, because rows come in the order of time.
CREATE INDEX settlement_created ON tally.settlement USING brin (created_at);
CREATE INDEX attempt_sent ON tally.attempt USING brin (sent_at);
CREATE INDEX settlement_squad ON tally.settlement (squad_id, tenant_id, number);

-- What happened to a settlement beside its postings: questions and their answers, disputes, decisions, late news.
CREATE TABLE tally.settlement_event (
    tenant_id   integer NOT NULL,
    settlement  bigint NOT NULL,
    number      bigint GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    what        text NOT NULL,
    by          text NOT NULL,
    body        bytea NOT NULL,
    PRIMARY KEY (tenant_id, settlement, number),
    FOREIGN KEY (tenant_id, settlement) REFERENCES tally.settlement
);

-- What needs a second person. Who asks cannot approve.
CREATE TABLE tally.approval (
    tenant_id    integer NOT NULL REFERENCES tally.tenant,
    id           uuid NOT NULL,
    subject      uuid NOT NULL,
    action       text NOT NULL CHECK (action = 'new_generation'),
    -- The generation that would be made: an approval is for one, once.
    generation   integer NOT NULL CHECK (generation > 0),
    reason       text NOT NULL,
    evidence     text NOT NULL,
    asked_by     text NOT NULL,
    asked_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    decision     text CHECK (decision IN ('approved', 'rejected')),
    decided_by   text,
    decided_at   timestamptz,
    decided_why  text,
    PRIMARY KEY (tenant_id, id),
    CHECK ((decision IS NULL) = (decided_by IS NULL) AND (decision IS NULL) = (decided_at IS NULL)),
    CONSTRAINT second_person CHECK (decided_by <> asked_by)
);
CREATE UNIQUE INDEX approval_open ON tally.approval (tenant_id, subject, action)
    WHERE decision IS NULL;

-- What a call that is no ledger operation answered under its key: a replay is the same to the byte.
CREATE TABLE tally.reply (
    tenant_id integer NOT NULL REFERENCES tally.tenant,
    key       text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
    request   bytea NOT NULL,
    body      bytea NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (key, tenant_id)
);

-- Counts since the first day, in a few rows so that workers do not wait for each other.
CREATE TABLE tally.settlement_count (
    slot  integer NOT NULL,
    name  text NOT NULL,
    value bigint NOT NULL,
    PRIMARY KEY (slot, name)
) WITH (fillfactor = 50);

-- In which database, and on which line of its history, sending was last known to be safe. A restored backup or a
-- promoted standby is another one: nothing is sent from it before `tally recover` has asked the providers.
CREATE FUNCTION tally.here(OUT system bigint, OUT timeline integer, OUT database oid)
LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT s.system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer, d.oid
      FROM pg_control_system() AS s, pg_database AS d WHERE d.datname = current_database()
$$;
CREATE TABLE tally.whereabouts (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    system        bigint NOT NULL,
    timeline      integer NOT NULL,
    database      oid NOT NULL,
    confirmed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- While sending is not confirmed: the newest send that the backup remembered. What was lost was sent after it.
    known_until   timestamptz
);
INSERT INTO tally.whereabouts (system, timeline, database)
SELECT system, timeline, database FROM tally.here();

-- Movements that `tally recover` found at a provider and that no row here explains: a settlement that is created again
-- with such a key is asked about before it is sent. subject: the settlement it names in words; created again under
-- another fee it has another key, and a person decides.
CREATE TABLE tally.orphan (
    provider      text COLLATE "C" NOT NULL,
    reference     text COLLATE "C" NOT NULL,
    provider_id   text NOT NULL,
    amount_micros bigint NOT NULL,
    currency      text NOT NULL,
    state         text NOT NULL,
    subject       uuid,
    found_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (provider, provider_id)
);
CREATE INDEX orphan_reference ON tally.orphan (provider, reference);
CREATE INDEX orphan_subject ON tally.orphan (subject);

-- Intents learn whom they serve: one live key for each, by a unique index. `ended`: a final failure was recorded and a
-- second person approved another key.
ALTER TABLE tally.intent ADD COLUMN subject uuid, ADD COLUMN ended boolean NOT NULL DEFAULT false;
CREATE UNIQUE INDEX one_live_key ON tally.intent (tenant_id, subject) WHERE subject IS NOT NULL AND NOT ended;
-- The provider failed inside: it may roll the request forward later, so that absence proves nothing.
-- What a movement was doing when the provider called it done: what was done may have come back already.
ALTER TABLE tally.attempt ADD COLUMN server_error boolean NOT NULL DEFAULT false,
    ADD COLUMN state text CHECK (state IN ('waiting', 'moving', 'moved', 'failed', 'returned'));

-- Row-level foreign keys cost more than the rows they guard: as on the ledger's tables (decision 0003) a check of the
-- whole statement holds the same. Neither tenants nor intents can go away.
ALTER TABLE tally.attempt DROP CONSTRAINT attempt_tenant_id_key_provider_fkey;
ALTER TABLE tally.intent DROP CONSTRAINT intent_tenant_id_fkey;
CREATE OR REPLACE FUNCTION tally.attempt_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    journaled bigint;
BEGIN
    INSERT INTO tally.journal (tenant_id, subject, body, digest)
    SELECT s.tenant_id, s.subject, s.body,
           sha256('tallystick/journal/1'::bytea
               || int4send(octet_length(t.name)) || convert_to(t.name, 'UTF8')
               || int4send(octet_length(s.subject)) || convert_to(s.subject, 'UTF8')
               || int4send(octet_length(s.body)) || s.body)
      FROM (SELECT f.tenant_id, 'attempt.' || CASE TG_OP WHEN 'INSERT' THEN 'sent' ELSE 'answered' END AS subject,
                   convert_to((CASE TG_OP
                       WHEN 'INSERT' THEN jsonb_build_object(
                           'provider', f.provider, 'key', encode(f.key, 'hex'), 'number', f.number,
                           'purpose', i.purpose, 'account', i.account, 'instruction', encode(sha256(i.instruction), 'hex'),
                           'first_sent_at', i.first_sent_at, 'sent_at', f.sent_at, 'not_after', f.not_after)
                       ELSE jsonb_build_object(
                           'provider', f.provider, 'key', encode(f.key, 'hex'), 'number', f.number,
                           'answer', f.answer, 'code', f.code, 'provider_id', f.provider_id,
                           'evidence', encode(sha256(f.evidence), 'hex'), 'answered_at', f.answered_at)
                       END)::text, 'UTF8') AS body
              FROM fresh f
             CROSS JOIN LATERAL (SELECT * FROM tally.intent i
                                  WHERE i.tenant_id = f.tenant_id AND i.key = f.key AND i.provider = f.provider
                                 OFFSET 0) AS i
              -- Else the planner writes the expression of body out three times, and builds the JSON three times.
             OFFSET 0) AS s
      JOIN tally.tenant t USING (tenant_id);
    GET DIAGNOSTICS journaled = ROW_COUNT;
    IF journaled <> (SELECT count(*) FROM fresh) THEN
        RAISE EXCEPTION 'tally: an attempt of an intent that its tenant does not have' USING ERRCODE = 'TS003';
    END IF;
    RETURN NULL;
END $$;

DROP TRIGGER identity ON tally.intent;
CREATE TRIGGER identity BEFORE UPDATE ON tally.intent FOR EACH ROW
    WHEN (old.tenant_id <> new.tenant_id OR old.provider <> new.provider OR old.key <> new.key
          OR old.purpose <> new.purpose OR old.instruction <> new.instruction OR old.account <> new.account
          OR old.first_sent_at <> new.first_sent_at OR new.attempts < old.attempts
          OR old.subject IS DISTINCT FROM new.subject OR (old.ended AND NOT new.ended))
    EXECUTE FUNCTION tally.refuse_change('what was asked, and when first, never changes');

CREATE FUNCTION tally.intent_ended() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    -- What was done is a final failure only when the provider's own books showed that it came back, or is not there.
    -- Since the last approval: what came back of an earlier generation says nothing of this one.
    IF ((EXISTS (SELECT 1 FROM tally.attempt a
                  WHERE a.tenant_id = new.tenant_id AND a.key = new.key AND a.provider = new.provider
                    AND a.answer = 'done')
         OR EXISTS (SELECT 1 FROM tally.settlement_state st
                      JOIN tally.settlement s ON s.tenant_id = st.tenant_id AND s.number = st.number
                     WHERE s.tenant_id = new.tenant_id AND s.id = new.subject AND st.transfer_id IS NOT NULL))
        AND NOT EXISTS (SELECT 1 FROM tally.settlement_event e
                          JOIN tally.settlement s ON s.tenant_id = e.tenant_id AND s.number = e.settlement
                         WHERE s.tenant_id = new.tenant_id AND s.id = new.subject
                           AND e.what IN ('came_back', 'missing_there')
                           AND e.number > (SELECT coalesce(max(a.number), 0) FROM tally.settlement_event a
                                            WHERE a.tenant_id = e.tenant_id AND a.settlement = e.settlement
                                              AND a.what = 'generation_approved')))
       OR NOT EXISTS (SELECT 1 FROM tally.approval p
                       WHERE p.tenant_id = new.tenant_id AND p.subject = new.subject AND p.decision = 'approved')
    THEN
        RAISE EXCEPTION 'tally: a key is ended only after a final failure and a second person''s approval'
              USING ERRCODE = 'TS004';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER ending BEFORE UPDATE ON tally.intent FOR EACH ROW WHEN (new.ended AND NOT old.ended)
    EXECUTE FUNCTION tally.intent_ended();

-- The keys of core/keys.py, so that nobody can give a settlement another one: not even by hand.
CREATE FUNCTION tally.key_part(name text, type text, value text) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN int4send(octet_length(name)) || convert_to(name, 'UTF8') || convert_to(type, 'UTF8')
        || int4send(octet_length(convert_to(value, 'UTF8'))) || convert_to(value, 'UTF8');
CREATE FUNCTION tally.settlement_key(tenant text, s tally.settlement) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN sha256('tallystick/key/1'::bytea || int4send(10) || 'settlement'::bytea
        || tally.key_part('attribution_id', 's', s.attribution_id)
        || tally.key_part('currency', 's', s.currency)
        || tally.key_part('generation', 'i', s.generation::text)
        || tally.key_part('net_micros', 'i', s.net_micros::text)
        || tally.key_part('provider', 's', s.provider)
        || tally.key_part('squad_id', 's', s.squad_id)
        || tally.key_part('tenant', 's', tenant));
CREATE FUNCTION tally.settlement_id(tenant text, s tally.settlement) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN encode(substring(sha256('tallystick/key/1'::bytea || int4send(13) || 'settlement_id'::bytea
        || tally.key_part('attribution_id', 's', s.attribution_id)
        || tally.key_part('squad_id', 's', s.squad_id)
        || tally.key_part('tenant', 's', tenant)) FROM 1 FOR 16), 'hex')::uuid;

-- Identity, key and fee of new settlements: computed here again, whoever inserts.
CREATE FUNCTION tally.settlement_created() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    fault record;
BEGIN
    SELECT count(*) FILTER (WHERE s.id <> tally.settlement_id(t.name, s)) AS ids,
           count(*) FILTER (WHERE s.generation <> 0 OR s.key <> tally.settlement_key(t.name, s)) AS keys,
           count(*) FILTER (WHERE s.fee_micros <> coalesce(greatest(p.minimum_micros, p.fixed_micros
               + div(s.gross_micros::numeric * p.percent_ppm, 1000000)), 0)) AS fees
      INTO fault
      FROM fresh f
     CROSS JOIN LATERAL (SELECT * FROM tally.settlement s
                          WHERE s.tenant_id = f.tenant_id AND s.number = f.number OFFSET 0) AS s
      JOIN tally.tenant t ON t.tenant_id = s.tenant_id
      LEFT JOIN LATERAL (SELECT * FROM tally.settlement_policy p
                          WHERE p.tenant_id = s.tenant_id AND p.currency IN (s.currency, '')
                          ORDER BY p.currency DESC LIMIT 1) AS p ON true;
    IF fault.ids <> 0 OR fault.keys <> 0 THEN
        RAISE EXCEPTION 'tally: % settlement(s) have an id or a key that is not their content''s',
                        greatest(fault.ids, fault.keys) USING ERRCODE = 'TS005';
    END IF;
    IF fault.fees <> 0 THEN
        RAISE EXCEPTION 'tally: the fee of % settlement(s) is not the tenant''s policy''s', fault.fees
              USING ERRCODE = 'TS006';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER settlement_created AFTER INSERT ON tally.settlement
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.settlement_created();

CREATE TRIGGER identity BEFORE UPDATE ON tally.settlement FOR EACH ROW
    WHEN (old.tenant_id <> new.tenant_id OR old.number <> new.number OR old.id <> new.id
          OR old.attribution_id <> new.attribution_id OR old.squad_id <> new.squad_id OR old.currency <> new.currency
          OR old.gross_micros <> new.gross_micros OR old.fee_micros <> new.fee_micros
          OR old.net_micros <> new.net_micros OR old.amount_micros <> new.amount_micros
          OR old.provider <> new.provider OR old.destination <> new.destination OR old.created_at <> new.created_at)
    EXECUTE FUNCTION tally.refuse_change('what a settlement is never changes');

CREATE FUNCTION tally.settlement_renewed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF new.generation <> old.generation + 1
       OR new.key <> (SELECT tally.settlement_key(t.name, new) FROM tally.tenant t WHERE t.tenant_id = new.tenant_id)
       OR (SELECT s.status FROM tally.settlement_state s
            WHERE s.tenant_id = new.tenant_id AND s.number = new.number) IS DISTINCT FROM 'failed'
       OR NOT EXISTS (SELECT 1 FROM tally.approval p
                       WHERE p.tenant_id = new.tenant_id AND p.subject = new.id AND p.generation = new.generation
                         AND p.decision = 'approved')
       OR EXISTS (SELECT 1 FROM tally.intent i
                   WHERE i.tenant_id = new.tenant_id AND i.subject = new.id AND NOT i.ended)
    THEN
        RAISE EXCEPTION 'tally: a new key needs a recorded final failure and a second person''s approval'
              USING ERRCODE = 'TS004';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER renewal BEFORE UPDATE ON tally.settlement FOR EACH ROW
    WHEN (old.generation <> new.generation OR old.key <> new.key) EXECUTE FUNCTION tally.settlement_renewed();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.settlement
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a payout that is forgotten could be made again');

CREATE TRIGGER transition BEFORE UPDATE ON tally.settlement_state FOR EACH ROW
    WHEN (old.status <> new.status AND NOT (
              (old.status = 'pending' AND new.status IN ('processing', 'disputed'))
           OR (old.status = 'processing' AND new.status IN ('transferred', 'failed', 'disputed'))
           OR (old.status = 'transferred' AND new.status = 'disputed')
           OR (old.status = 'failed' AND new.status IN ('disputed', 'pending'))
           OR (old.status = 'disputed' AND new.status IN ('transferred', 'failed', 'processing'))))
    EXECUTE FUNCTION tally.refuse_change('that is no step of a settlement');
CREATE TRIGGER fence BEFORE UPDATE ON tally.settlement_state FOR EACH ROW
    WHEN (old.tenant_id <> new.tenant_id OR old.number <> new.number OR old.provider <> new.provider
          OR new.claim_number < old.claim_number
          OR (old.status = 'pending' AND new.status = 'processing' AND new.claim_number = old.claim_number))
    EXECUTE FUNCTION tally.refuse_change('a claim is never taken back');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.settlement_state
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a payout that is forgotten could be made again');
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.settlement_event
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('its rows are never changed');
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.reply
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('its rows are never changed');
CREATE TRIGGER decided_once BEFORE UPDATE ON tally.approval FOR EACH ROW
    WHEN (old.decision IS NOT NULL OR old.tenant_id <> new.tenant_id OR old.id <> new.id OR old.subject <> new.subject
          OR old.action <> new.action OR old.generation <> new.generation OR old.asked_by <> new.asked_by
          OR old.evidence <> new.evidence OR old.reason <> new.reason)
    EXECUTE FUNCTION tally.refuse_change('an approval is decided once, and what was asked stays as it was');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.approval
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('decisions are evidence');

-- Disputes, decisions, questions, policies: steps that no ledger operation describes enter the journal by themselves.
CREATE FUNCTION tally.journal_step(tenant integer, subject text, body bytea) RETURNS void
LANGUAGE sql SET search_path = pg_catalog AS $$
    INSERT INTO tally.journal (tenant_id, subject, body, digest)
    SELECT tenant, subject, body,
           sha256('tallystick/journal/1'::bytea
               || int4send(octet_length(t.name)) || convert_to(t.name, 'UTF8')
               || int4send(octet_length(subject)) || convert_to(subject, 'UTF8')
               || int4send(octet_length(body)) || body)
      FROM tally.tenant t WHERE t.tenant_id = tenant
$$;
CREATE FUNCTION tally.settlement_event_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM tally.journal_step(f.tenant_id, 'settlement.' || f.what, convert_to(jsonb_build_object(
                'settlement', s.id, 'by', f.by, 'at', f.at, 'body', encode(sha256(f.body), 'hex'))::text, 'UTF8'))
       FROM fresh f JOIN tally.settlement s ON s.tenant_id = f.tenant_id AND s.number = f.settlement;
    RETURN NULL;
END $$;
CREATE TRIGGER journaled AFTER INSERT ON tally.settlement_event
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.settlement_event_journaled();
CREATE FUNCTION tally.approval_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM tally.journal_step(f.tenant_id, 'approval.' || coalesce(f.decision, 'asked'),
                               convert_to(to_jsonb(f)::text, 'UTF8')) FROM fresh f;
    RETURN NULL;
END $$;
CREATE TRIGGER asked_journaled AFTER INSERT ON tally.approval
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.approval_journaled();
CREATE TRIGGER decided_journaled AFTER UPDATE ON tally.approval
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.approval_journaled();
CREATE FUNCTION tally.policy_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM tally.journal_step(f.tenant_id, 'settlement.policy', convert_to(to_jsonb(f)::text, 'UTF8')) FROM fresh f;
    RETURN NULL;
END $$;
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.settlement_policy
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a fee is changed in the open, to nothing if need be');
CREATE TRIGGER made_journaled AFTER INSERT ON tally.settlement_policy
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.policy_journaled();
CREATE TRIGGER changed_journaled AFTER UPDATE ON tally.settlement_policy
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.policy_journaled();

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['settlement_policy', 'settlement', 'settlement_state', 'settlement_event', 'approval',
                                'reply'] LOOP
        EXECUTE format('GRANT SELECT ON tally.%I TO tallystick_reader', name);
        EXECUTE format('ALTER TABLE tally.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY own_tenant ON tally.%I FOR SELECT TO tallystick_reader '
                       'USING (tenant_id = (SELECT tally.current_tenant()))', name);
    END LOOP;
END $$;
