package app

import (
	"testing"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// What is parked of a key is in the status of its split.
func TestStatusTellsWhatIsParked(t *testing.T) {
	split := fromSplit(&coordinator.QuotaStatus{ID: quota.ID{Policy: "api", Key: "k"}, Parked: 1500}, time.Unix(0, 0))
	if got := split.GetParkedMillitokens(); got != 1500 || string(split.GetId().GetKey()) != "k" {
		t.Errorf("%d parked of %v", got, split.GetId())
	}
}
