-- What was granted to wallets, and what explain and usage look for
-- (docs/adr/0055).

-- +goose Up

-- Top-ups are never taken away: a key answers for ever. They outlive their
-- tenant, as what it consumed does.
CREATE TABLE topups (
    id            uuid PRIMARY KEY,
    revision      bigint NOT NULL UNIQUE, -- that made it
    tenant        text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL, -- Idempotency-Key
    fingerprint   bytea NOT NULL,            -- of what was asked with it
    meter         text COLLATE "C" NOT NULL,
    units         bigint NOT NULL CHECK (units BETWEEN 1 AND 9007199254740991),
    priority      integer NOT NULL,
    expires_at    timestamptz,
    reason        text NOT NULL,
    granted_total bigint NOT NULL, -- of the wallet, after it
    granted_at    timestamptz NOT NULL,
    granted_by    text NOT NULL,
    spent         bigint NOT NULL DEFAULT 0 CHECK (spent BETWEEN 0 AND units), -- as far as was read
    expired_at    timestamptz,
    expired_units bigint NOT NULL DEFAULT 0 CHECK (expired_units BETWEEN 0 AND units),
    CONSTRAINT topups_key UNIQUE (tenant, key)
);
CREATE INDEX topups_of_tenant ON topups (tenant, revision);
CREATE INDEX topups_open ON topups (tenant, meter) WHERE expired_at IS NULL;
CREATE INDEX topups_due ON topups (expires_at) WHERE expires_at IS NOT NULL AND expired_at IS NULL;

CREATE TABLE wallets (
    tenant        text COLLATE "C" NOT NULL,
    meter         text COLLATE "C" NOT NULL,
    granted_total bigint NOT NULL CHECK (granted_total BETWEEN 0 AND 9007199254740991), -- less what expired
    version       bigint NOT NULL, -- the revision of the last change
    consumed      bigint NOT NULL, -- as they were last read; both only rise
    refunded      bigint NOT NULL,
    owed          bigint NOT NULL, -- spent beyond what was granted, less what was given back of expired top-ups
    PRIMARY KEY (tenant, meter)
);

-- The expressions of these are those of count.go.
CREATE INDEX objects_counting_rules ON objects ((coalesce(body #>> '{match,tenant}', '')))
    WHERE kind = 'rule' AND body ->> 'kind' IN ('quota', 'wallet');
CREATE INDEX objects_rules_by_subject ON objects (
    (coalesce(body #>> '{match,tenant}', '')), (coalesce(body #>> '{match,application}', '')),
    (coalesce(body #>> '{match,user}', '')), (coalesce(body #>> '{match,api_key}', ''))) WHERE kind = 'rule';
CREATE INDEX objects_key_digests ON objects ((kept ->> 'digest')) WHERE kind = 'api_key';
