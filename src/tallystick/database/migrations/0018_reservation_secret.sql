-- A reservation's token is no longer random. It is part of the key of the order's charges: a buyer who asks for the same
-- order again after a restore that lost it got another token, so another key, and was charged a second time.
--
-- It is an HMAC of the order's id under a secret of the tenant, made once and never changed: nobody can guess it, and the
-- same order has the same one in every life of this database. Orders of before keep theirs.
CREATE TABLE tally.tenant_secret (
    tenant_id integer PRIMARY KEY REFERENCES tally.tenant,
    secret    bytea NOT NULL DEFAULT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
              CHECK (octet_length(secret) = 32)
);

CREATE FUNCTION tally.tenant_made() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO tally.tenant_secret (tenant_id) SELECT tenant_id FROM fresh ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- Before the tenants that are there: one that is made meanwhile has its secret from here.
CREATE TRIGGER tenant_made AFTER INSERT ON tally.tenant
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tally.tenant_made();
INSERT INTO tally.tenant_secret (tenant_id) SELECT tenant_id FROM tally.tenant ON CONFLICT DO NOTHING;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.tenant_secret
    FOR EACH STATEMENT EXECUTE FUNCTION tally.refuse_change('with another secret the same order would be charged again');

-- Nobody reads it but who makes orders.
ALTER TABLE tally.tenant_secret ENABLE ROW LEVEL SECURITY;
