package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/weirhq/weir/quota"
)

// SQLSTATE codes that stand for themselves; see unavailable for whole classes.
const (
	undefinedTable       = "42P01"
	undefinedColumn      = "42703"
	uniqueViolation      = "23505"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
	readOnlyTransaction  = "25006"
	queryCanceled        = "57014"
)

// translate turns an error of the driver into one of the domain, by code or
// type. Everything that reaches a caller of this package has passed through it;
// domain errors and ended contexts stay what they are.
func translate(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case isDomain(err):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", op, err)
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		if disconnected(err) {
			return fmt.Errorf("%s: %w: %w", op, quota.ErrUnavailable, err)
		}
		return fmt.Errorf("%s: %w", op, err)
	}
	switch {
	case pg.Code == undefinedTable, pg.Code == undefinedColumn:
		return fmt.Errorf("%s: %w: the schema is not up to date, run \"weir migrate up\": %w", op, quota.ErrUnavailable, err)
	case pg.Code == uniqueViolation:
		return fmt.Errorf("%s: %w: %w", op, quota.ErrConflict, err)
	case unavailable(pg.Code):
		return fmt.Errorf("%s: %w: %w", op, quota.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// unavailable reports whether trying again later can help.
func unavailable(code string) bool {
	switch code {
	case serializationFailure, deadlockDetected, lockNotAvailable, readOnlyTransaction, queryCanceled:
		return true
	}
	switch code[:2] {
	case "08", // connection exceptions
		"28", // refused by authentication, which an operator mends on either side
		"53", // out of resources: disk, memory, connections
		"57", // shutting down, starting up, crashed
		"58": // errors of the system around it
		return true
	}
	return false
}

// disconnected reports whether an error without a code is one of the connection.
func disconnected(err error) bool {
	var (
		connect *pgconn.ConnectError
		network net.Error
	)
	return errors.As(err, &connect) || errors.As(err, &network) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, puddle.ErrClosedPool) || pgconn.SafeToRetry(err)
}

func isDomain(err error) bool {
	for _, sentinel := range []error{quota.ErrInvalid, quota.ErrNotFound, quota.ErrConflict, quota.ErrUnavailable} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}
