package lua_test

import (
	"testing"

	"github.com/weirhq/weir/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
