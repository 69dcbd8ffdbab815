-- +goose Up

-- One row. Every change of policies or overrides locks it first, so that changes
-- are serial and numbers are committed in the order in which they are given out.
CREATE TABLE store_state (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    -- The newest revision; 0 is the empty set.
    revision bigint NOT NULL DEFAULT 0,
    -- The newest row of audit_log.
    audit bigint NOT NULL DEFAULT 0,
    -- The position of the newest change of overrides, and the newest position
    -- among those that have been forgotten.
    overrides bigint NOT NULL DEFAULT 0,
    overrides_forgotten bigint NOT NULL DEFAULT 0
);
INSERT INTO store_state DEFAULT VALUES;

-- Append-only: one row for each committed state of the whole policy set.
CREATE TABLE revisions (
    number bigint PRIMARY KEY CHECK (number > 0),
    author text NOT NULL,
    message text NOT NULL,
    committed_at timestamptz NOT NULL,
    -- Where the revision is live; empty is everywhere.
    regions text[] NOT NULL,
    -- The revision that a rollback made this one equal to, else 0.
    restored_from bigint NOT NULL,
    -- Ids of the policies that differ from the revision before.
    added text[] NOT NULL,
    changed text[] NOT NULL,
    removed text[] NOT NULL,
    -- The size of the set.
    policies integer NOT NULL
);

-- One row for each version of a policy: it belongs to the revisions from since
-- up to but not including until. A row changes once, when until is set.
CREATE TABLE policies (
    id text COLLATE "C" NOT NULL,
    since bigint NOT NULL REFERENCES revisions,
    until bigint REFERENCES revisions CHECK (until > since),
    -- json and not jsonb: a pattern may hold any character, also \u0000.
    body json NOT NULL,
    PRIMARY KEY (id, since)
);
CREATE UNIQUE INDEX policies_current ON policies (id) WHERE until IS NULL;
CREATE INDEX policies_ended ON policies (until) WHERE until IS NOT NULL;

-- Append-only: one row for each change of anything.
CREATE TABLE audit_log (
    number bigint PRIMARY KEY CHECK (number > 0),
    happened_at timestamptz NOT NULL,
    author text NOT NULL,
    action text NOT NULL,
    message text NOT NULL,
    revision bigint NOT NULL,
    detail text NOT NULL
);

-- +goose Down
DROP TABLE audit_log;
DROP TABLE policies;
DROP TABLE revisions;
DROP TABLE store_state;
