package regional_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/quota"
)

// Fault list 21: 100 per minute on two nodes, which are asked ten times a second each:
// 100 in each of three windows, whichever node is asked.
func TestWindowsEndOnTwoNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		policies := []*quota.Policy{logPolicy("log", 100, time.Minute)}
		nodes := []*bundle{setup(t, store, policies), setup(t, store, policies)}
		for window := range 3 {
			admitted := [2]int{}
			for range 600 {
				for i, n := range nodes {
					if n.mustCheck(t, request()).Allowed {
						admitted[i]++
					}
				}
				pass(100 * time.Millisecond)
			}
			if sum := admitted[0] + admitted[1]; sum != 100 {
				t.Errorf("window %d admitted %d (%v by node), want 100", window, sum, admitted)
			}
			if admitted[0] == 0 || admitted[1] == 0 {
				t.Errorf("window %d: %v by node", window, admitted)
			}
		}
	})
}
