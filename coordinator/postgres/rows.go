package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// rowColumns are those of ledger that a Row consists of, in the order of scanRow
// and columns.
const rowColumns = `policy, key, region, algorithm, limit_capacity, limit_refill, period_us, floor_capacity, floor_refill,
	version, ack_version, acked_capacity, acked_refill, sent_capacity, sent_refill, max_sent_capacity, max_sent_refill,
	perm_capacity, perm_refill, perm_acked_capacity, perm_acked_refill, perm_max_capacity, perm_max_refill, perm_version,
	dropping, reclaimed`

// commit writes a batch, if the epoch is $1, no commit numbered $2 or later has been
// made in it, and none up to $3 has been lost.
const commit = `WITH mine AS (
		UPDATE ledger_state SET sequence = $2 WHERE epoch = $1 AND sequence >= $3 AND sequence < $2 RETURNING true
	), rows AS (
		INSERT INTO ledger AS l (` + rowColumns + `, epoch)
		SELECT n.*, $1 FROM mine, unnest($4::text[], $5::bytea[], $6::text[], $7::smallint[], $8::bigint[], $9::bigint[], $10::bigint[],
			$11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[],
			$19::bigint[], $20::bigint[], $21::bigint[], $22::bigint[], $23::bigint[], $24::bigint[], $25::bigint[], $26::bigint[],
			$27::bigint[], $28::boolean[], $29::boolean[]) AS n
		ON CONFLICT (policy, key, region) DO UPDATE SET
			algorithm = excluded.algorithm, limit_capacity = excluded.limit_capacity, limit_refill = excluded.limit_refill,
			period_us = excluded.period_us, floor_capacity = excluded.floor_capacity, floor_refill = excluded.floor_refill,
			version = excluded.version, ack_version = excluded.ack_version,
			acked_capacity = excluded.acked_capacity, acked_refill = excluded.acked_refill,
			sent_capacity = excluded.sent_capacity, sent_refill = excluded.sent_refill,
			max_sent_capacity = excluded.max_sent_capacity, max_sent_refill = excluded.max_sent_refill,
			perm_capacity = excluded.perm_capacity, perm_refill = excluded.perm_refill,
			perm_acked_capacity = excluded.perm_acked_capacity, perm_acked_refill = excluded.perm_acked_refill,
			perm_max_capacity = excluded.perm_max_capacity, perm_max_refill = excluded.perm_max_refill,
			perm_version = excluded.perm_version,
			dropping = excluded.dropping, reclaimed = excluded.reclaimed, epoch = excluded.epoch
	), dropped AS (
		DELETE FROM ledger AS l USING mine, unnest($30::text[], $31::bytea[], $32::text[]) AS d (policy, key, region)
		WHERE l.policy = d.policy AND l.key = d.key AND l.region = d.region
	), regions AS (
		INSERT INTO ledger_regions (region, gen, lost)
		SELECT n.* FROM mine, unnest($33::text[], $34::text[], $35::boolean[]) AS n
		ON CONFLICT (region) DO UPDATE SET gen = excluded.gen, lost = excluded.lost
	), gone AS (
		DELETE FROM ledger_regions USING mine WHERE region = ANY ($36::text[])
	)
	SELECT EXISTS (SELECT FROM mine), ` + durable

// columns returns the arguments of commit from $4 on: one array for each column.
func columns(b coordinator.Batch) []any {
	const (
		texts   = 3  // policy, key, region
		numbers = 20 // from limit_capacity to perm_version
	)
	n := len(b.Rows)
	policies, keys, regions := make([]string, n), make([][]byte, n), make([]string, n)
	algorithms, dropping, reclaimed := make([]int16, n), make([]bool, n), make([]bool, n)
	var amounts [numbers][]int64
	for c := range amounts {
		amounts[c] = make([]int64, n)
	}
	for i := range b.Rows {
		r := &b.Rows[i]
		policies[i], keys[i], regions[i] = r.ID.Policy, []byte(r.ID.Key), string(r.Region)
		algorithms[i], dropping[i], reclaimed[i] = int16(r.Algorithm), r.Drop, r.Reclaimed
		for c, v := range [numbers]int64{
			int64(r.Limit.Capacity), int64(r.Limit.Refill), r.Limit.Period.Microseconds(),
			int64(r.Floor.Capacity), int64(r.Floor.Refill), r.Version, r.AckVersion,
			int64(r.Acked.Capacity), int64(r.Acked.Refill), int64(r.Sent.Capacity), int64(r.Sent.Refill),
			int64(r.MaxSent.Capacity), int64(r.MaxSent.Refill), int64(r.Perm.Capacity), int64(r.Perm.Refill),
			int64(r.PermAcked.Capacity), int64(r.PermAcked.Refill), int64(r.PermMax.Capacity), int64(r.PermMax.Refill), r.Version,
		} {
			amounts[c][i] = v
		}
	}
	args := append(make([]any, 0, texts+1+numbers+2+7), policies, keys, regions, algorithms)
	for _, a := range amounts {
		args = append(args, a)
	}
	args = append(args, dropping, reclaimed)
	return append(args, otherColumns(b)...)
}

// otherColumns are the arguments for everything but rows.
func otherColumns(b coordinator.Batch) []any {
	n := len(b.DropRows)
	policies, keys, regions := make([]string, n), make([][]byte, n), make([]string, n)
	for i, k := range b.DropRows {
		policies[i], keys[i], regions[i] = k.ID.Policy, []byte(k.ID.Key), string(k.Region)
	}
	n = len(b.Regions)
	names, gens, lost := make([]string, n), make([]string, n), make([]bool, n)
	for i, r := range b.Regions {
		names[i], gens[i], lost[i] = string(r.Region), r.Gen, r.Lost
	}
	gone := make([]string, len(b.DropRegions))
	for i, r := range b.DropRegions {
		gone[i] = string(r)
	}
	return []any{policies, keys, regions, names, gens, lost, gone}
}

// read fills a snapshot, as far as no later epoch has begun.
func read(ctx context.Context, tx pgx.Tx, s *coordinator.Snapshot) error {
	var epoch quota.Epoch
	if err := tx.QueryRow(ctx, `SELECT epoch, lossy FROM ledger_state`).Scan(&epoch, &s.Lossy); err != nil {
		return err
	}
	if epoch != s.Epoch {
		return fmt.Errorf("epoch %d has ended, %d has begun: %w", s.Epoch, epoch, quota.ErrFenced)
	}
	rows, err := tx.Query(ctx, `SELECT region, gen, lost FROM ledger_regions ORDER BY region`)
	if err != nil {
		return err
	}
	s.Regions, err = pgx.CollectRows(rows, pgx.RowToStructByPos[coordinator.RegionRow])
	if err != nil {
		return err
	}
	rows, err = tx.Query(ctx, `SELECT `+rowColumns+` FROM ledger ORDER BY policy, key, region`)
	if err != nil {
		return err
	}
	s.Rows, err = pgx.CollectRows(rows, scanRow)
	return err
}

func scanRow(row pgx.CollectableRow) (coordinator.Row, error) {
	var (
		r         coordinator.Row
		key       []byte
		period    int64
		algorithm int16
		permitted int64
	)
	err := row.Scan(&r.ID.Policy, &key, &r.Region, &algorithm, &r.Limit.Capacity, &r.Limit.Refill, &period,
		&r.Floor.Capacity, &r.Floor.Refill, &r.Version, &r.AckVersion, &r.Acked.Capacity, &r.Acked.Refill,
		&r.Sent.Capacity, &r.Sent.Refill, &r.MaxSent.Capacity, &r.MaxSent.Refill,
		&r.Perm.Capacity, &r.Perm.Refill, &r.PermAcked.Capacity, &r.PermAcked.Refill, &r.PermMax.Capacity, &r.PermMax.Refill, &permitted,
		&r.Drop, &r.Reclaimed)
	if permitted != r.Version {
		// Written by a coordinator that grants without leases: all of it is permanent.
		r.Perm, r.PermAcked, r.PermMax = r.Sent, r.Acked, r.MaxSent
	}
	r.ID.Key, r.Algorithm = string(key), quota.Algorithm(algorithm)
	r.Limit.Period = time.Duration(period) * time.Microsecond
	return r, err
}
