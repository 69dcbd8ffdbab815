package memory_test

import (
	"testing"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/ledgertest"
	"github.com/weirhq/weir/coordinator/memory"
)

func TestLedger(t *testing.T) {
	ledgertest.Run(t, func(*testing.T) func() coordinator.Ledger {
		l := memory.NewComplete()
		return func() coordinator.Ledger { return l }
	})
}
