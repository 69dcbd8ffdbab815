-- +goose Up

-- One row. A commit of the ledger locks it first, so that the beginning of an
-- epoch waits for the commits under way and refuses all later ones of earlier epochs.
CREATE TABLE ledger_state (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    -- The fencing number: only its owner can commit. It only rises.
    epoch bigint NOT NULL DEFAULT 0,
    -- The last commit of the epoch. A commit that arrives late, after a later one
    -- of the same owner, is refused by it.
    sequence bigint NOT NULL DEFAULT 0,
    -- Commits of earlier epochs may be missing.
    lossy boolean NOT NULL DEFAULT false
);
INSERT INTO ledger_state DEFAULT VALUES;

-- The most that each region may be using of each quota. Shares count their
-- refill by period_us. All amounts are milli-tokens.
CREATE TABLE ledger (
    policy text COLLATE "C" NOT NULL,
    -- Empty is the default split of all keys without one of their own. Any bytes.
    key bytea NOT NULL,
    region text COLLATE "C" NOT NULL,
    -- quota.Algorithm; 0 is one that is not known yet.
    algorithm smallint NOT NULL,
    limit_capacity bigint NOT NULL,
    limit_refill bigint NOT NULL,
    period_us bigint NOT NULL,
    floor_capacity bigint NOT NULL,
    floor_refill bigint NOT NULL,
    version bigint NOT NULL CHECK (version > 0),
    ack_version bigint NOT NULL CHECK (ack_version >= 0),
    acked_capacity bigint NOT NULL,
    acked_refill bigint NOT NULL,
    sent_capacity bigint NOT NULL,
    sent_refill bigint NOT NULL,
    max_sent_capacity bigint NOT NULL,
    max_sent_refill bigint NOT NULL,
    -- The version takes the region's record away.
    dropping boolean NOT NULL,
    -- The epoch that wrote the row last, for people.
    epoch bigint NOT NULL,
    PRIMARY KEY (policy, key, region)
) WITH (fillfactor = 70); -- rows are updated far more often than added

-- The regions whose rows are complete.
CREATE TABLE ledger_regions (
    region text COLLATE "C" PRIMARY KEY,
    -- The dataset that it last reported from.
    gen text NOT NULL,
    -- Its logs may have forgotten entries that still count.
    lost boolean NOT NULL
);

-- One row: who leads. It stands apart from ledger_state so that a long commit
-- does not hold up a beat.
CREATE TABLE leader (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    -- A new one for each time that somebody takes over; empty when nobody leads.
    tenure text NOT NULL DEFAULT '',
    holder text NOT NULL DEFAULT '',
    url text NOT NULL DEFAULT '',
    -- Rises with every change of the row. Candidates watch that it does.
    beat bigint NOT NULL DEFAULT 0,
    -- For people. No decision compares clocks of two machines.
    beat_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 10);
INSERT INTO leader DEFAULT VALUES;

-- +goose Down
DROP TABLE leader;
DROP TABLE ledger_regions;
DROP TABLE ledger;
DROP TABLE ledger_state;
