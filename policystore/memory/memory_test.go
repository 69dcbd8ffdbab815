package memory_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/policystore/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, func(_ *testing.T, now func() time.Time) policystore.Store { return memory.New(now) })
}

func TestTokens(t *testing.T) {
	storetest.RunTokens(t, func(_ *testing.T, now func() time.Time) storetest.TokenStore { return memory.New(now) })
}
