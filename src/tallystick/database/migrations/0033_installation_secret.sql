-- A tenant that is made again after a restore has the secret that it had.
--
-- The token of a reservation, and with it the key of its charges, follows from the tenant's secret. A tenant that was made
-- after the backup was made anew with another one: his buyers' orders got other keys, and were charged a second time inside
-- the provider's memory. The secret of a new tenant now follows from his name and from one of the installation, which is made
-- here once and is in every backup since. Tenants of before keep theirs.
--
-- The release before this one runs beside it: it makes tenants, and this makes their secrets.
CREATE TABLE tally.installation_secret (
    secret bytea NOT NULL DEFAULT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
           CHECK (octet_length(secret) = 32)
);
CREATE UNIQUE INDEX one_installation_secret ON tally.installation_secret ((true));
INSERT INTO tally.installation_secret DEFAULT VALUES;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.installation_secret
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('with another secret the same order would be charged again');

-- Nobody reads it but whoever makes tenants, and that goes through here.
ALTER TABLE tally.installation_secret ENABLE ROW LEVEL SECURITY;
CREATE OR REPLACE FUNCTION tally.tenant_made() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO tally.tenant_secret (tenant_id, secret)
    SELECT f.tenant_id, sha256(s.secret || convert_to(f.name, 'UTF8'))
      FROM fresh f CROSS JOIN tally.installation_secret s
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
