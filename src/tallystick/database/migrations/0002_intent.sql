-- Intents: what is asked of a provider, committed with the time of its first send before the first byte leaves,
-- and every attempt with its answer.
--
-- A provider's memory of a key begins with the first send, so first_sent_at decides for ever whether sending again
-- is safe. One key covers one instruction: the primary key and the trigger below hold both.

CREATE TABLE tally.intent (
    tenant_id     integer NOT NULL REFERENCES tally.tenant,
    provider      text COLLATE "C" NOT NULL CHECK (octet_length(provider) BETWEEN 1 AND 40),
    key           bytea NOT NULL CHECK (octet_length(key) = 32),
    purpose       text NOT NULL CHECK (purpose IN ('charge', 'refund', 'transfer', 'payout')),
    instruction   bytea NOT NULL,
    -- Whose books to ask: with other credentials the same question would be answered from other books.
    account       text NOT NULL,
    first_sent_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts      integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    PRIMARY KEY (tenant_id, key, provider)
) WITH (fillfactor = 80);

-- token is the sender's own mark: a COMMIT whose answer was lost is run again and finds its own attempt.
CREATE TABLE tally.attempt (
    tenant_id   integer NOT NULL,
    provider    text COLLATE "C" NOT NULL,
    key         bytea NOT NULL,
    number      integer NOT NULL CHECK (number >= 1),
    token       uuid NOT NULL,
    sent_at     timestamptz NOT NULL,
    not_after   timestamptz NOT NULL CHECK (not_after >= sent_at),
    answered_at timestamptz,
    answer      text CHECK (answer IN ('done', 'refused', 'busy', 'unknown')),
    code        text,
    provider_id text,
    evidence    bytea,
    PRIMARY KEY (tenant_id, key, provider, number),
    FOREIGN KEY (tenant_id, key, provider) REFERENCES tally.intent,
    CHECK ((answer IS NULL) = (answered_at IS NULL)),
    -- Done without the provider's id would be a claim nobody could check.
    CHECK (answer IS DISTINCT FROM 'done' OR provider_id IS NOT NULL)
) WITH (fillfactor = 80);

CREATE TRIGGER identity BEFORE UPDATE ON tally.intent FOR EACH ROW
    WHEN (old.tenant_id <> new.tenant_id OR old.provider <> new.provider OR old.key <> new.key
          OR old.purpose <> new.purpose OR old.instruction <> new.instruction OR old.account <> new.account
          OR old.first_sent_at <> new.first_sent_at OR new.attempts < old.attempts)
    EXECUTE FUNCTION tally.refuse_change('what was asked, and when first, never changes');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.intent
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a key that is forgotten could be paid again');
CREATE TRIGGER answered_once BEFORE UPDATE ON tally.attempt FOR EACH ROW
    WHEN (old.answer IS NOT NULL OR old.tenant_id <> new.tenant_id OR old.provider <> new.provider
          OR old.key <> new.key OR old.number <> new.number OR old.token <> new.token
          OR old.sent_at <> new.sent_at OR old.not_after <> new.not_after)
    EXECUTE FUNCTION tally.refuse_change('an attempt is answered once, and nothing else of it changes');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.attempt
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('attempts are evidence');

-- Sending and being answered are steps that change money: both enter the journal in their own commit.
CREATE FUNCTION tally.attempt_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
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
              FROM fresh f JOIN tally.intent i USING (tenant_id, provider, key)) AS s
      JOIN tally.tenant t USING (tenant_id);
    RETURN NULL;
END $$;

CREATE TRIGGER sent_journaled AFTER INSERT ON tally.attempt
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.attempt_journaled();
CREATE TRIGGER answer_journaled AFTER UPDATE ON tally.attempt
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.attempt_journaled();

-- Breakers live in the processes that send; here each says what it sees, for the person who asks.
CREATE TABLE tally.breaker (
    provider   text COLLATE "C" NOT NULL,
    process    text NOT NULL,
    state      text NOT NULL CHECK (state IN ('closed', 'open', 'probing')),
    reason     text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (provider, process)
);

GRANT SELECT ON tally.intent, tally.attempt TO tallystick_reader;
ALTER TABLE tally.intent ENABLE ROW LEVEL SECURITY;
ALTER TABLE tally.attempt ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON tally.intent FOR SELECT TO tallystick_reader
    USING (tenant_id = (SELECT tally.current_tenant()));
CREATE POLICY own_tenant ON tally.attempt FOR SELECT TO tallystick_reader
    USING (tenant_id = (SELECT tally.current_tenant()));
