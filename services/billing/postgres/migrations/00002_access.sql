-- Who may look at a tenant's account, and who asked for what was not theirs.
-- docs/adr/0065 says why.

-- +goose Up

CREATE TABLE portal_grants (
    jti        text COLLATE "C" PRIMARY KEY,
    tenant     text NOT NULL,
    username   text NOT NULL,
    issued_at  timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz,
    origin     text COLLATE "C" REFERENCES portal_grants ON DELETE CASCADE -- of a session: the grant it grew from
);
CREATE INDEX portal_grants_origin ON portal_grants (origin);
CREATE INDEX portal_grants_expired ON portal_grants (expires_at);
CREATE TABLE portal_codes (
    digest     bytea PRIMARY KEY, -- SHA-256; the code itself is kept nowhere
    jti        text COLLATE "C" NOT NULL REFERENCES portal_grants ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);
CREATE INDEX portal_codes_jti ON portal_codes (jti);
CREATE TABLE portal_denials (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL,
    tenant   text NOT NULL, -- who asked
    username text NOT NULL,
    jti      text NOT NULL,
    kind     text NOT NULL,
    ref      text NOT NULL,
    path     text NOT NULL,
    owner    text -- whose it is; NULL: there is no such object
);
CREATE INDEX portal_denials_at ON portal_denials (at);

-- Whose an API key is, or was. Rows stay when a key is revoked.
CREATE TABLE api_keys (
    id     text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    PRIMARY KEY (id, tenant)
);
