package postgres

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirhq/weir/quota"
)

const (
	undefinedTable  = "42P01"
	undefinedColumn = "42703"
)

// translate turns an error of the driver into one of the domain. Everything that
// reaches a caller of this package has passed through it. What the server did not
// refuse by name may have happened or not, so that it is unavailable, and besides
// an ended context where it was one.
func translate(op string, err error) error {
	if err == nil || errors.Is(err, quota.ErrFenced) || errors.Is(err, quota.ErrUnavailable) {
		return err
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case pg.Code == undefinedTable, pg.Code == undefinedColumn:
			return fmt.Errorf("%s: %w: the schema is not up to date, run \"weir migrate up\": %w", op, quota.ErrUnavailable, err)
		case refused(pg.Code):
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return fmt.Errorf("%s: %w: %w", op, quota.ErrUnavailable, err)
}

// refused reports whether a statement can never succeed: its data or text is wrong.
func refused(code string) bool {
	switch code[:2] {
	case "22", "23", "42":
		return true
	}
	return false
}
