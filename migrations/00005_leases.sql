-- +goose Up

-- What a region may go on using of a share when its lease is over. The columns count
-- only for the version that perm_version names: a coordinator that does not know of
-- leases writes the others alone, and then the whole share is permanent.
ALTER TABLE ledger
    ADD COLUMN perm_capacity bigint NOT NULL DEFAULT 0,
    ADD COLUMN perm_refill bigint NOT NULL DEFAULT 0,
    ADD COLUMN perm_acked_capacity bigint NOT NULL DEFAULT 0,
    ADD COLUMN perm_acked_refill bigint NOT NULL DEFAULT 0,
    ADD COLUMN perm_max_capacity bigint NOT NULL DEFAULT 0,
    ADD COLUMN perm_max_refill bigint NOT NULL DEFAULT 0,
    ADD COLUMN perm_version bigint NOT NULL DEFAULT 0,
    -- The share was taken back after the end of the region's lease. It gets no other
    -- until it has acknowledged the version.
    ADD COLUMN reclaimed boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE ledger
    DROP COLUMN reclaimed,
    DROP COLUMN perm_version,
    DROP COLUMN perm_max_refill,
    DROP COLUMN perm_max_capacity,
    DROP COLUMN perm_acked_refill,
    DROP COLUMN perm_acked_capacity,
    DROP COLUMN perm_refill,
    DROP COLUMN perm_capacity;
