-- Who may pay how much to whom.
--
-- Any operator's key could pay any amount to any destination. A tenant may have a policy now: a ceiling for each payout and
-- for each day, destinations that were made known some time before, and a second person above an amount. It is enforced in the
-- commit that creates the payout, here too: a trigger looks at every new settlement and every new generation of one under the
-- lock of the tenant's line, so that two processes at once cannot pass a day's ceiling together. Tenants without a policy pay
-- for one look at an empty table.

-- One line for each tenant that has a policy. Creators share it; whoever changes it waits for them, and they for him.
CREATE TABLE tally.authority_policy (
    tenant_id          integer PRIMARY KEY REFERENCES tally.tenant,
    known_destinations boolean NOT NULL,
    waiting_seconds    integer NOT NULL CHECK (waiting_seconds BETWEEN 0 AND 31536000),
    changed_by         text NOT NULL,
    changed_at         timestamptz NOT NULL DEFAULT now()
);
-- Amounts are of gross. NULL: no such bound. A tenant with lines pays in the currencies that have one, and in no other.
CREATE TABLE tally.authority_ceiling (
    tenant_id            integer NOT NULL REFERENCES tally.authority_policy,
    currency             text COLLATE "C" NOT NULL CHECK (octet_length(currency) = 3),
    payout_micros        bigint CHECK (payout_micros > 0),
    day_micros           bigint CHECK (day_micros > 0),
    second_person_micros bigint CHECK (second_person_micros >= 0),
    -- What was promised on this day (UTC, by the database's clock). Moved by settlements alone.
    day                  date NOT NULL DEFAULT 'epoch',
    used_micros          bigint NOT NULL DEFAULT 0 CHECK (used_micros >= 0),
    -- A line that was taken away stays; put back, it sums up what was promised meanwhile.
    is_gone              boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, currency)
);
-- A destination is often a small JSON object, longer than an index can hold: it is known by its digest.
CREATE TABLE tally.destination (
    tenant_id    integer NOT NULL REFERENCES tally.tenant,
    provider     text COLLATE "C" NOT NULL CHECK (octet_length(provider) BETWEEN 1 AND 40),
    digest       bytea NOT NULL CHECK (octet_length(digest) = 32),
    destination  text NOT NULL CHECK (octet_length(destination) BETWEEN 1 AND 4000),
    number       bigint GENERATED ALWAYS AS IDENTITY,
    added_by     text NOT NULL,
    -- The waiting time counts from here; made known again after it was withdrawn, from then.
    added_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    withdrawn_at timestamptz,
    PRIMARY KEY (tenant_id, provider, digest),
    CHECK (digest = sha256(convert_to(destination, 'UTF8')))
);

-- What is held waits for a second person: it is none of the pending, and no claim sees it.
ALTER TABLE tally.settlement ADD COLUMN needs_approval boolean NOT NULL DEFAULT false;
CREATE TRIGGER approval_identity BEFORE UPDATE ON tally.settlement FOR EACH ROW
    WHEN (old.needs_approval <> new.needs_approval)
    EXECUTE FUNCTION tally.refuse_change('what a settlement is never changes');
ALTER TABLE tally.settlement_state DROP CONSTRAINT settlement_state_status_check;
ALTER TABLE tally.settlement_state ADD CONSTRAINT settlement_state_status_check
    CHECK (status IN ('held', 'pending', 'processing', 'transferred', 'failed', 'disputed')) NOT VALID;

-- Approvals of payouts, and of what is decided about refunds; each for one subject, once.
ALTER TABLE tally.approval DROP CONSTRAINT approval_action_check;
ALTER TABLE tally.approval ADD CONSTRAINT approval_action_check
    CHECK (action IN ('new_generation', 'payout', 'refund_confirm', 'refund_keep')) NOT VALID;
ALTER TABLE tally.approval DROP CONSTRAINT approval_generation_check;
ALTER TABLE tally.approval ADD CONSTRAINT approval_generation_check
    CHECK (generation > 0 OR (generation = 0 AND action <> 'new_generation')) NOT VALID;

DROP TRIGGER transition ON tally.settlement_state;
CREATE TRIGGER transition BEFORE UPDATE ON tally.settlement_state FOR EACH ROW
    WHEN (old.status <> new.status AND NOT (
              (old.status = 'held' AND new.status IN ('pending', 'failed', 'disputed'))
           OR (old.status = 'pending' AND new.status IN ('processing', 'disputed'))
           OR (old.status = 'processing' AND new.status IN ('transferred', 'failed', 'disputed'))
           OR (old.status = 'transferred' AND new.status = 'disputed')
           OR (old.status = 'failed' AND new.status IN ('disputed', 'pending'))
           OR (old.status = 'disputed' AND new.status IN ('transferred', 'failed', 'processing'))))
    EXECUTE FUNCTION tally.refuse_change('that is no step of a settlement');

CREATE FUNCTION tally.payout_released() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM tally.settlement s
                     JOIN tally.approval p ON p.tenant_id = s.tenant_id AND p.subject = s.id
                    WHERE s.tenant_id = new.tenant_id AND s.number = new.number AND p.action = 'payout'
                      AND p.decision = 'approved')
    THEN
        RAISE EXCEPTION 'tally: a payout that is held needs a second person''s approval' USING ERRCODE = 'TS004';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER release BEFORE UPDATE ON tally.settlement_state FOR EACH ROW
    WHEN (old.status = 'held' AND new.status = 'pending') EXECUTE FUNCTION tally.payout_released();

-- Some settlements of one tenant against its policy, under its line's lock: counted, or refused.
CREATE FUNCTION tally.authority_used(tenant integer, of text, gross numeric, largest bigint, before bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    line tally.authority_ceiling;
BEGIN
    SELECT * INTO line FROM tally.authority_ceiling c
     WHERE c.tenant_id = tenant AND c.currency = of AND NOT c.is_gone FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        IF EXISTS (SELECT 1 FROM tally.authority_ceiling c WHERE c.tenant_id = tenant AND NOT c.is_gone) THEN
            RAISE EXCEPTION 'tally: authority: this tenant pays nothing in %', of USING ERRCODE = 'TS007';
        END IF;
        RETURN;
    END IF;
    IF largest > line.payout_micros THEN
        RAISE EXCEPTION 'tally: authority: a payout is above the ceiling of %', line.payout_micros USING ERRCODE = 'TS007';
    END IF;
    line.used_micros := gross + tally.authority_used_before(line, today, before);
    IF line.used_micros > line.day_micros THEN
        RAISE EXCEPTION 'tally: authority: the day''s ceiling of % is passed', line.day_micros USING ERRCODE = 'TS007';
    END IF;
    UPDATE tally.authority_ceiling c SET day = greatest(c.day, today), used_micros = line.used_micros
     WHERE c.tenant_id = tenant AND c.currency = of;
END $$;

-- What the day has already: counted, or where nobody has counted yet (the day or the line is new), summed up.
CREATE FUNCTION tally.authority_used_before(line tally.authority_ceiling, today date, before bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
BEGIN
    IF line.day >= today THEN
        RETURN line.used_micros;
    END IF;
    RETURN (SELECT coalesce(sum(s.gross_micros), 0) FROM tally.settlement s
             WHERE s.created_at >= today::timestamp AT TIME ZONE 'UTC' AND s.tenant_id = line.tenant_id
               AND s.currency = line.currency AND s.number < before);
END $$;

CREATE FUNCTION tally.destination_refused(policy tally.authority_policy, at text, wanted text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
BEGIN
    RETURN policy.known_destinations AND NOT EXISTS (
        SELECT 1 FROM tally.destination d
         WHERE d.tenant_id = policy.tenant_id AND d.provider = at AND d.digest = sha256(convert_to(wanted, 'UTF8'))
           AND d.withdrawn_at IS NULL
           AND d.added_at + make_interval(secs => policy.waiting_seconds) <= clock_timestamp());
END $$;

CREATE FUNCTION tally.settlement_authorised() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    wrong bigint;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM fresh f JOIN tally.authority_policy p USING (tenant_id)) THEN
        IF EXISTS (SELECT 1 FROM fresh f WHERE f.needs_approval) THEN
            RAISE EXCEPTION 'tally: authority: nobody asks for a second person' USING ERRCODE = 'TS007';
        END IF;
        RETURN NULL;
    END IF;
    SELECT count(*) INTO wrong
      FROM fresh f
      JOIN tally.authority_policy p USING (tenant_id)
      LEFT JOIN tally.authority_ceiling c ON c.tenant_id = f.tenant_id AND c.currency = f.currency AND NOT c.is_gone
     CROSS JOIN LATERAL (SELECT status FROM tally.settlement_state st
                          WHERE st.tenant_id = f.tenant_id AND st.number = f.number OFFSET 0) AS st
     WHERE tally.destination_refused(p, f.provider, f.destination)
        OR f.needs_approval <> coalesce(f.gross_micros > c.second_person_micros, false)
        OR f.needs_approval <> (st.status = 'held');
    IF wrong <> 0 THEN
        RAISE EXCEPTION 'tally: authority: % payout(s) to a destination that may not be paid yet, or without the second '
                        'person that the policy asks for', wrong USING ERRCODE = 'TS007';
    END IF;
    PERFORM tally.authority_used(f.tenant_id, f.currency, f.gross, f.largest, f.first)
       FROM (SELECT tenant_id, currency, sum(gross_micros) AS gross, max(gross_micros) AS largest, min(number) AS first
               FROM fresh WHERE tenant_id IN (SELECT tenant_id FROM tally.authority_policy)
              GROUP BY tenant_id, currency ORDER BY tenant_id, currency) AS f;
    RETURN NULL;
END $$;
CREATE TRIGGER settlement_authorised AFTER INSERT ON tally.settlement
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.settlement_authorised();

-- Another generation is sent anew: it is within today's policy, and counts today. Its second person is that of its approval.
CREATE FUNCTION tally.generation_authorised() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    policy tally.authority_policy;
BEGIN
    SELECT * INTO policy FROM tally.authority_policy p WHERE p.tenant_id = new.tenant_id FOR SHARE;
    IF FOUND THEN
        IF tally.destination_refused(policy, new.provider, new.destination) THEN
            RAISE EXCEPTION 'tally: authority: a destination that may not be paid yet' USING ERRCODE = 'TS007';
        END IF;
        PERFORM tally.authority_used(new.tenant_id, new.currency, new.gross_micros, new.gross_micros,
                                     9223372036854775807);
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER generation_authorised BEFORE UPDATE ON tally.settlement FOR EACH ROW
    WHEN (old.generation <> new.generation) EXECUTE FUNCTION tally.generation_authorised();

-- As before: the approval that ends a key is one of another generation, and no other.
CREATE OR REPLACE FUNCTION tally.intent_ended() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
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
                       WHERE p.tenant_id = new.tenant_id AND p.subject = new.subject AND p.decision = 'approved'
                         AND p.action = 'new_generation')
    THEN
        RAISE EXCEPTION 'tally: a key is ended only after a final failure and a second person''s approval'
              USING ERRCODE = 'TS004';
    END IF;
    RETURN new;
END $$;

CREATE FUNCTION tally.authority_journaled() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM tally.journal_step(f.tenant_id, TG_ARGV[0], convert_to(to_jsonb(f)::text, 'UTF8')) FROM fresh f;
    RETURN NULL;
END $$;
CREATE TRIGGER made_journaled AFTER INSERT ON tally.authority_policy
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.authority_journaled('authority.policy');
CREATE TRIGGER changed_journaled AFTER UPDATE ON tally.authority_policy
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.authority_journaled('authority.policy');
CREATE TRIGGER made_journaled AFTER INSERT ON tally.authority_ceiling
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.authority_journaled('authority.ceiling');
-- What settlements count here is theirs to journal.
CREATE TRIGGER changed_journaled AFTER UPDATE ON tally.authority_ceiling
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
    EXECUTE FUNCTION tally.authority_journaled('authority.ceiling');
CREATE TRIGGER counted BEFORE UPDATE ON tally.authority_ceiling FOR EACH ROW
    WHEN (pg_trigger_depth() = 0 AND NOT old.is_gone AND (old.day <> new.day OR old.used_micros <> new.used_micros))
    EXECUTE FUNCTION tally.refuse_change('what a day has is counted by settlements alone');
CREATE TRIGGER made_journaled AFTER INSERT ON tally.destination
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.authority_journaled('authority.destination');
CREATE TRIGGER changed_journaled AFTER UPDATE ON tally.destination
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.authority_journaled('authority.destination');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.authority_policy
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a bound is changed in the open, to nothing if need be');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.authority_ceiling
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a bound is changed in the open, to nothing if need be');
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON tally.destination
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('a destination is withdrawn in the open');

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['authority_policy', 'authority_ceiling', 'destination'] LOOP
        EXECUTE format('GRANT SELECT ON tally.%I TO tallystick_reader', name);
        EXECUTE format('ALTER TABLE tally.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY own_tenant ON tally.%I FOR SELECT TO tallystick_reader '
                       'USING (tenant_id = (SELECT tally.current_tenant()))', name);
    END LOOP;
END $$;

-- step
ALTER TABLE tally.settlement_state VALIDATE CONSTRAINT settlement_state_status_check;
ALTER TABLE tally.approval VALIDATE CONSTRAINT approval_action_check;
ALTER TABLE tally.approval VALIDATE CONSTRAINT approval_generation_check;

-- step: concurrently
CREATE INDEX CONCURRENTLY IF NOT EXISTS settlement_held ON tally.settlement_state (tenant_id, number) WHERE status = 'held';
