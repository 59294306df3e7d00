-- What was counted, what it costs, what was invoiced. docs/adr/0061 to 0064 say why it
-- looks like this.

-- +goose Up

-- How far usage.v1 is counted. The row of a partition is locked by whoever counts it,
-- so that two instances never count the same events at once.
CREATE TABLE partitions (
    partition    integer PRIMARY KEY,
    first_offset bigint NOT NULL, -- where counting began; 0: at the topic's beginning
    next_offset  bigint NOT NULL,
    record_at    timestamptz NOT NULL, -- of the newest record that was counted
    changed_at   timestamptz NOT NULL
);

-- Which numbers of which gateway run came. A repeat is known by its number.
CREATE TABLE streams (
    id        uuid PRIMARY KEY,
    partition integer NOT NULL,
    next      bigint NOT NULL CHECK (next >= 1),
    last_at   timestamptz NOT NULL,
    seen_at   timestamptz NOT NULL
);
CREATE INDEX streams_idle ON streams (seen_at);

-- Numbers that did not come. They are taken away when they do.
CREATE TABLE gaps (
    stream     uuid NOT NULL,
    from_seq   bigint NOT NULL,
    to_seq     bigint NOT NULL, -- exclusive
    partition  integer NOT NULL,
    after_at   timestamptz,     -- of the event before; NULL: none came
    before_at  timestamptz NOT NULL,
    noticed_at timestamptz NOT NULL,
    PRIMARY KEY (stream, from_seq),
    CHECK (from_seq < to_seq)
);

-- The catalogue as rules.v1 tells it. Tenants and plans keep their versions: an invoice
-- is priced by the one that was in force at its period's end.
CREATE TABLE tenants (
    id         text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    changed_at timestamptz NOT NULL,
    deleted    boolean NOT NULL,
    name       text NOT NULL,
    plan       text NOT NULL,
    zone       text NOT NULL,
    anchor     timestamptz,
    currency   text NOT NULL,
    former     jsonb NOT NULL,
    PRIMARY KEY (id, version)
);
CREATE TABLE plans (
    id         text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    changed_at timestamptz NOT NULL,
    deleted    boolean NOT NULL,
    name       text NOT NULL,
    fee        bigint NOT NULL,
    currency   text NOT NULL,
    unit       text NOT NULL, -- empty: no fee
    PRIMARY KEY (id, version),
    CONSTRAINT plans_fee_not_negative CHECK (fee >= 0)
);
CREATE TABLE plan_included (
    plan    text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    meter   text COLLATE "C" NOT NULL,
    units   bigint NOT NULL,
    PRIMARY KEY (plan, version, meter),
    FOREIGN KEY (plan, version) REFERENCES plans (id, version),
    CONSTRAINT plan_included_not_negative CHECK (units >= 0)
);
CREATE TABLE plan_steps (
    plan       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    position   integer NOT NULL,
    meter      text COLLATE "C" NOT NULL,
    up_to      bigint CHECK (up_to > 0), -- NULL: no end
    unit_price numeric NOT NULL,
    PRIMARY KEY (plan, version, position),
    FOREIGN KEY (plan, version) REFERENCES plans (id, version),
    CONSTRAINT plan_steps_price_not_negative CHECK (unit_price >= 0)
);
-- What is shown of the rest of the catalogue, as it is now.
CREATE TABLE endpoints (
    id      text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    deleted boolean NOT NULL,
    service text NOT NULL,
    method  text NOT NULL,
    path    text NOT NULL,
    cost    bigint NOT NULL
);
CREATE TABLE rules (
    id         text COLLATE "C" PRIMARY KEY,
    version    bigint NOT NULL,
    deleted    boolean NOT NULL,
    name       text NOT NULL,
    kind       text NOT NULL,
    algorithm  text NOT NULL,
    meter      text NOT NULL,
    lim        bigint NOT NULL,
    window_us  bigint NOT NULL,
    subject    text[] NOT NULL,
    thresholds integer[] NOT NULL, -- per cent
    unit       text NOT NULL,
    count      integer NOT NULL
);

-- Who is billed. The row is locked, shared by whoever counts for the tenant, and alone
-- by whoever makes a period final.
CREATE TABLE accounts (
    tenant    text COLLATE "C" PRIMARY KEY,
    since     timestamptz NOT NULL, -- billing periods have no gap from here on
    partition integer NOT NULL      -- of its events; -1: none came
);
CREATE TABLE periods (
    tenant       text COLLATE "C" NOT NULL REFERENCES accounts,
    start_at     timestamptz NOT NULL,
    end_at       timestamptz NOT NULL,
    final        boolean NOT NULL DEFAULT false,
    plan         text NOT NULL DEFAULT '', -- that a final one was priced by
    plan_version bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, start_at),
    CHECK (start_at < end_at)
);
CREATE INDEX periods_due ON periods (end_at) WHERE NOT final;

-- What was used. Rows of a final period never change: what becomes known later has the
-- period that it goes into.
CREATE TABLE usage (
    tenant       text COLLATE "C" NOT NULL,
    period_start timestamptz NOT NULL,
    into_start   timestamptz NOT NULL, -- the period whose invoice has it
    kind         text COLLATE "C" NOT NULL CHECK (kind IN ('usage', 'late', 'refund', 'settlement')),
    day          timestamptz NOT NULL,
    meter        text COLLATE "C" NOT NULL,
    application  text COLLATE "C" NOT NULL,
    service      text COLLATE "C" NOT NULL,
    endpoint     text COLLATE "C" NOT NULL,
    api_key      text COLLATE "C" NOT NULL,
    calls        bigint NOT NULL,
    units        bigint NOT NULL CHECK (units >= 0),
    returned     bigint NOT NULL CHECK (returned >= 0),
    degraded     bigint NOT NULL,
    prepaid      bigint NOT NULL,
    unpriced     bigint NOT NULL,
    PRIMARY KEY (tenant, into_start, period_start, kind, day, meter, endpoint, service, application, api_key),
    CHECK ((kind = 'usage') = (period_start = into_start))
);
CREATE INDEX usage_days ON usage (tenant, day);
CREATE TABLE set_aside (
    tenant     text COLLATE "C" NOT NULL,
    meter      text COLLATE "C" NOT NULL,
    into_start timestamptz NOT NULL, -- the period whose invoice tells of it
    calls      bigint NOT NULL,
    units      bigint NOT NULL,
    returned   bigint NOT NULL,
    PRIMARY KEY (tenant, meter, into_start)
);
CREATE TABLE cuts (
    tenant      text COLLATE "C" NOT NULL,
    day         timestamptz NOT NULL,
    reason      text COLLATE "C" NOT NULL,
    rule        text COLLATE "C" NOT NULL,
    algorithm   text COLLATE "C" NOT NULL,
    application text COLLATE "C" NOT NULL,
    api_key     text COLLATE "C" NOT NULL,
    service     text COLLATE "C" NOT NULL,
    endpoint    text COLLATE "C" NOT NULL,
    status      integer NOT NULL,
    calls       bigint NOT NULL,
    units       bigint NOT NULL,
    first_seen  timestamptz NOT NULL,
    last_seen   timestamptz NOT NULL,
    PRIMARY KEY (tenant, day, rule, endpoint, api_key, application, service, reason, algorithm, status)
);

-- Every quota and wallet counter as its newest event has it, beside what its events add
-- up to: what it has beyond them is unattributed.
CREATE TABLE counters (
    key            text COLLATE "C" PRIMARY KEY,
    tenant         text COLLATE "C" NOT NULL,
    meter          text COLLATE "C" NOT NULL,
    wallet         boolean NOT NULL,
    rule           text NOT NULL,
    soft           boolean NOT NULL,
    application    text NOT NULL,
    username       text NOT NULL,
    api_key        text NOT NULL,
    period_start   timestamptz, -- NULL: a prepaid wallet
    period_end     timestamptz,
    lim            bigint NOT NULL,
    consumed       bigint NOT NULL,
    refunded       bigint NOT NULL,
    consumed_base  bigint NOT NULL, -- before the first event, where counting did not begin at the topic's beginning
    refunded_base  bigint NOT NULL,
    charged        bigint NOT NULL,
    returned       bigint NOT NULL,
    last_at        timestamptz NOT NULL
);
CREATE INDEX counters_tenant ON counters (tenant, period_end);

-- The ledger of prepaid wallets. Entries are never changed.
CREATE TABLE grants (
    id         text COLLATE "C" PRIMARY KEY,
    version    bigint NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    meter      text COLLATE "C" NOT NULL,
    units      bigint NOT NULL CHECK (units > 0),
    spent      bigint NOT NULL,
    expired    bigint NOT NULL CHECK (expired BETWEEN 0 AND units),
    priority   integer NOT NULL,
    granted_at timestamptz NOT NULL,
    expires_at timestamptz,
    reason     text NOT NULL,
    CHECK (spent >= 0 AND spent + expired <= units)
);
CREATE INDEX grants_wallet ON grants (tenant, meter);
CREATE TABLE wallets (
    tenant        text COLLATE "C" NOT NULL,
    meter         text COLLATE "C" NOT NULL,
    granted       bigint NOT NULL DEFAULT 0, -- sums of entries
    consumed      bigint NOT NULL DEFAULT 0,
    refunded      bigint NOT NULL DEFAULT 0,
    spread        bigint NOT NULL DEFAULT 0, -- of consumed − refunded, what grants have spent
    granted_total bigint NOT NULL DEFAULT 0, -- as rules.v1 tells it
    version       bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, meter)
);
CREATE TABLE wallet_entries (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant   text COLLATE "C" NOT NULL,
    meter    text COLLATE "C" NOT NULL,
    at       timestamptz NOT NULL,
    kind     text NOT NULL,
    units    bigint NOT NULL, -- what the balance moved by
    asked    bigint NOT NULL, -- what the event said it should; another where it was capped
    event    uuid,
    decision uuid,
    topup    text COLLATE "C",
    service  text NOT NULL DEFAULT '',
    endpoint text NOT NULL DEFAULT '',
    reason   text NOT NULL DEFAULT '',
    flag     text NOT NULL DEFAULT '',
    UNIQUE (event, tenant, meter),
    CONSTRAINT wallet_entries_sign CHECK (
        CASE kind WHEN 'topup' THEN units > 0 AND topup IS NOT NULL
                  WHEN 'expiry' THEN units < 0 AND topup IS NOT NULL
                  WHEN 'debit' THEN units < 0 AND event IS NOT NULL
                  WHEN 'refund' THEN units >= 0 AND event IS NOT NULL
                  WHEN 'settled' THEN event IS NOT NULL
                  ELSE false END)
);
CREATE INDEX wallet_entries_shown ON wallet_entries (tenant, meter, at DESC, id DESC);
CREATE INDEX wallet_entries_decision ON wallet_entries (decision);
CREATE UNIQUE INDEX wallet_entries_topup ON wallet_entries (topup) WHERE kind = 'topup';
CREATE INDEX wallet_entries_flagged ON wallet_entries (id) WHERE flag <> '';

-- Invoices are final. A draft is not kept: it is made up of what was used.
CREATE TABLE numbers (
    issuer text PRIMARY KEY,
    last   bigint NOT NULL
);
CREATE TABLE invoices (
    number       text COLLATE "C" PRIMARY KEY,
    tenant       text COLLATE "C" NOT NULL,
    period_start timestamptz NOT NULL,
    period_end   timestamptz NOT NULL,
    issuer       text NOT NULL,
    serial       bigint NOT NULL,
    plan         text NOT NULL,
    plan_name    text NOT NULL,
    zone         text NOT NULL,
    currency     text NOT NULL,
    total        bigint NOT NULL,
    counted      jsonb NOT NULL,
    issued_at    timestamptz NOT NULL,
    UNIQUE (issuer, serial),
    CONSTRAINT invoices_once UNIQUE (tenant, period_start)
);
CREATE TABLE invoice_lines (
    number     text COLLATE "C" NOT NULL REFERENCES invoices,
    position   integer NOT NULL,
    kind       text NOT NULL,
    meter      text NOT NULL,
    from_unit  bigint NOT NULL,
    to_unit    bigint NOT NULL,
    units      bigint NOT NULL,
    unit_price text NOT NULL,
    amount     bigint NOT NULL,
    degraded   bigint NOT NULL,
    corrects   text NOT NULL,
    of_start   timestamptz NOT NULL,
    of_end     timestamptz NOT NULL,
    ref        text NOT NULL,
    said       text NOT NULL,
    PRIMARY KEY (number, position)
);

-- +goose StatementBegin
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: what is in the books is never changed', TG_OP, TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
-- +goose StatementEnd
CREATE TRIGGER invoices_final BEFORE UPDATE OR DELETE OR TRUNCATE ON invoices FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER invoice_lines_final BEFORE UPDATE OR DELETE OR TRUNCATE ON invoice_lines FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER wallet_entries_final BEFORE UPDATE OR DELETE OR TRUNCATE ON wallet_entries FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- +goose StatementBegin
-- A line belongs to its invoice's own transaction: nothing is added to one that is final.
CREATE FUNCTION refuse_late_line() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM invoices WHERE number = NEW.number AND xmin::text = (pg_current_xact_id()::text::bigint % 4294967296)::text) THEN
        RAISE EXCEPTION 'invoice % is final: no line can be added', NEW.number USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER invoice_lines_late BEFORE INSERT ON invoice_lines FOR EACH ROW EXECUTE FUNCTION refuse_late_line();
