-- The catalogue, the outbox that tells the gateways of it, and the audit.
-- docs/adr/0031 says why it looks like this.

-- +goose Up

-- The one counter. Every change takes the next value and holds the row until it
-- commits, so revisions are committed in their order, and changes are made one
-- after the other.
CREATE TABLE revision (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    value      bigint NOT NULL CHECK (value BETWEEN 0 AND 9007199254740991),
    changed_at timestamptz NOT NULL -- of the last change; never falls back
);
INSERT INTO revision (value, changed_at) VALUES (0, 'epoch');

CREATE TABLE objects (
    kind       text NOT NULL,
    id         text COLLATE "C" NOT NULL,
    version    bigint NOT NULL UNIQUE, -- the revision of the last change
    body       jsonb NOT NULL,         -- what was put
    kept       jsonb NOT NULL,         -- what goes with it and is shown to nobody
    changed_at timestamptz NOT NULL,
    changed_by text NOT NULL,
    PRIMARY KEY (kind, id)
);
CREATE INDEX objects_open_periods ON objects ((body #>> '{match,tenant}')) WHERE kind = 'rule' AND body ? 'period';

-- What refers to what. Nothing that is referred to can be deleted.
CREATE TABLE object_refs (
    kind     text NOT NULL,
    id       text COLLATE "C" NOT NULL,
    field    text NOT NULL, -- e.g. match.tenant
    ref_kind text NOT NULL,
    ref_id   text COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, id, field),
    FOREIGN KEY (kind, id) REFERENCES objects ON DELETE CASCADE,
    CONSTRAINT object_refs_in_use FOREIGN KEY (ref_kind, ref_id) REFERENCES objects (kind, id)
);
CREATE INDEX object_refs_target ON object_refs (ref_kind, ref_id, kind, id);

-- Debezium's Outbox Event Router, and version. Rows are only inserted, and
-- pruned when a newer row of the same key has been there for long (docs/adr/0030).
CREATE TABLE outbox (
    id            uuid PRIMARY KEY,
    aggregatetype varchar(255) NOT NULL, -- topic
    aggregateid   varchar(255) NOT NULL, -- key
    type          varchar(255) NOT NULL, -- e.g. rule.changed
    payload       bytea,                 -- framed Avro; NULL is a tombstone
    version       bigint NOT NULL,
    created_at    timestamptz NOT NULL
);
CREATE UNIQUE INDEX outbox_key ON outbox (aggregatetype, aggregateid, version);
CREATE INDEX outbox_age ON outbox (created_at);
CREATE PUBLICATION penstock_outbox FOR TABLE outbox WITH (publish = 'insert');

-- Who changed what. Entries are never changed or taken away.
CREATE TABLE audit (
    revision   bigint PRIMARY KEY,
    id         uuid NOT NULL UNIQUE, -- also of the outbox row
    at         timestamptz NOT NULL,
    actor      text NOT NULL,
    role       text NOT NULL,
    action     text NOT NULL,
    kind       text NOT NULL,
    object_id  text COLLATE "C" NOT NULL,
    before     json, -- as it was shown; NULL when it was created
    after      json, -- as it is shown; NULL when it was deleted
    request_id text NOT NULL
);
CREATE INDEX audit_object ON audit (kind, object_id, revision);
CREATE INDEX audit_actor ON audit (actor, revision);

-- +goose StatementBegin
CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit is append-only: % refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_rows BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_append_only();
CREATE TRIGGER audit_table BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();

-- The registry's ids of our schemas, for starting without the registry.
CREATE TABLE schema_ids (
    subject     text NOT NULL,
    fingerprint text NOT NULL, -- of the schema's text
    id          bigint NOT NULL CHECK (id BETWEEN 0 AND 4294967295),
    kept_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (subject, fingerprint)
);
