-- What every quota and wallet has come to, how far usage.v1 is contained in that,
-- and what was told of corrections (docs/adr/0059).

-- +goose Up

-- One row a counter. Consumed and refunded only rise.
CREATE TABLE counters (
    key          text COLLATE "C" PRIMARY KEY, -- of the counter store
    kind         text NOT NULL,                -- quota or wallet
    meter        text NOT NULL,                -- empty: no event has told of it yet, nor of the next three
    period_start timestamptz,                  -- NULL: it has no period
    period_end   timestamptz,
    limit_units  bigint NOT NULL,              -- or granted total, when it was last told of
    consumed     bigint NOT NULL CHECK (consumed BETWEEN 0 AND 9007199254740991),
    refunded     bigint NOT NULL CHECK (refunded BETWEEN 0 AND 9007199254740991),
    told         bigint NOT NULL,              -- units of distinct events: charged less given back
    expires_at   timestamptz,                  -- when the counter may be forgotten; NULL: never
    changed_at   timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 80);
CREATE INDEX counters_over ON counters (expires_at) WHERE expires_at IS NOT NULL;

-- How far usage.v1 is contained: every event below next is.
CREATE TABLE partitions (
    partition integer PRIMARY KEY,
    next      bigint NOT NULL,
    saved_at  timestamptz NOT NULL DEFAULT now()
);

-- The numbers of events that were counted in told, by a gateway's run. Holes are
-- those that were passed over: pairs of from and to, 8 bytes each, big-endian.
CREATE TABLE streams (
    partition integer NOT NULL,
    stream    bytea NOT NULL,
    next      bigint NOT NULL,
    holes     bytea NOT NULL,
    lost      bigint NOT NULL, -- given up
    seen_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (partition, stream)
);

-- Corrections of the last days: an emptied store must not make them again.
CREATE TABLE corrections (
    tenant   text COLLATE "C" NOT NULL,
    decision bytea NOT NULL,
    refund   text COLLATE "C" NOT NULL, -- id; empty: the settlement
    units    bigint NOT NULL,           -- given back; or the cost it was settled at
    made_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant, decision, refund)
);
CREATE INDEX corrections_made ON corrections (made_at);

-- Since when the store is kept: one row, or none before it was.
CREATE TABLE custody (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    since    timestamptz NOT NULL
);
