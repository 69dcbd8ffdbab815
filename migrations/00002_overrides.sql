-- +goose Up

-- The newest state of each key that has, or had until lately, numbers of its own.
-- It refers to no policy: an override outlives its policy, and a rollback finds it again.
CREATE TABLE overrides (
    policy text COLLATE "C" NOT NULL,
    -- The values of the policy's key attributes, in its order. Any bytes.
    key bytea[] NOT NULL,
    capacity_millitokens bigint NOT NULL,
    refill_millitokens bigint NOT NULL,
    period_us bigint NOT NULL,
    unlimited boolean NOT NULL,
    -- NULL never ends.
    expires_at timestamptz,
    -- A deleted row stays for a while, for those who follow the changes.
    deleted_at timestamptz,
    -- Orders all changes of overrides.
    position bigint NOT NULL,
    PRIMARY KEY (policy, key)
);
CREATE UNIQUE INDEX overrides_position ON overrides (position);
CREATE INDEX overrides_dead ON overrides (coalesce(deleted_at, expires_at))
    WHERE deleted_at IS NOT NULL OR expires_at IS NOT NULL;

-- +goose Down
DROP TABLE overrides;
