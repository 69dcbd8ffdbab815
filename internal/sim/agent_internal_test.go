package sim

import (
	"context"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

// spied runs a scenario with this code alone and tells of every report.
func spied(t *testing.T, name string, saw func(region int, now int64, r quota.Report)) *course {
	t.Helper()
	s, _ := scenarioNamed(name)
	o := Defaults()
	o.Algorithms, o.history = []string{Weir}, 0
	c, err := newCourse(s, o, 1)
	if err != nil {
		t.Fatal(err)
	}
	w, _ := c.entrants[0].world.(*split)
	for i, a := range w.agents {
		ask := a.ask
		a.ask = func(now, call int64, r quota.Report) error {
			saw(i, now, r)
			return ask(now, call, r)
		}
	}
	if err := c.run(context.Background()); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestStarvingRegionsAskForMoreEveryHalfSecondAtMost(t *testing.T) {
	for _, name := range []string{"overload", "log"} {
		t.Run(name, func(t *testing.T) {
			urgent := map[int]int64{}
			count := [4]int{}
			quiet := 0
			spied(t, name, func(region int, now int64, r quota.Report) {
				for _, q := range r.Quotas {
					if !q.Urgent {
						continue
					}
					if last := urgent[region]; last != 0 && now-last < micros(urgentEvery) {
						t.Fatalf("region %d asks again after %d us", region, now-last)
					}
					urgent[region] = now
					count[region]++
					if now < epoch+eventStart*1_000_000 && now > epoch {
						quiet++
					}
				}
			})
			if count[0] < 60 || quiet > 20 {
				t.Errorf("urgent reports of each region: %v, %d of them while nothing is short", count, quiet)
			}
		})
	}
}

func TestUrgentReportsCarryTheRateOfTheLastSecond(t *testing.T) {
	first := true
	spied(t, "flash", func(region int, now int64, r quota.Report) {
		if region != 0 || now < epoch+eventStart*1_000_000 || !first {
			return
		}
		for _, q := range r.Quotas {
			if q.Urgent {
				first = false
				// The bucket was full: 65 % of it last for more than a second.
				if since := float64(now-epoch)/1e6 - eventStart; since > 3 || q.Demand < 500 || q.Demand > 800 {
					t.Errorf("first asks %.2f s after demand rose to 650/s, and says %.0f/s", since, q.Demand)
				}
			}
		}
	})
	if first {
		t.Error("never asked")
	}
}

func TestRegionsReportEachSecondAndAcknowledgeAtOnce(t *testing.T) {
	last, most := map[int]int64{}, int64(0)
	reports := 0
	c := spied(t, "diurnal", func(region int, now int64, _ quota.Report) {
		if now > epoch {
			reports++
			most = max(most, now-last[region])
		}
		last[region] = now
	})
	if perSecond := float64(reports) / c.scenario.duration / 4; perSecond < 0.7 || perSecond > 1.3 {
		t.Errorf("%.2f reports per second and region", perSecond)
	}
	if most > micros(5*time.Second) {
		t.Errorf("a region was silent for %d us", most)
	}
}

// While nobody answers, each call ends after its deadline and pauses grow.
func TestRegionsWaitForACoordinatorThatIsAway(t *testing.T) {
	down := 0
	spied(t, "coordinator-outage", func(_ int, now int64, _ quota.Report) {
		if now > epoch+(eventStart+30)*1_000_000 && now < epoch+(eventStart+600)*1_000_000 {
			down++
		}
	})
	if perRegion := down / 4; perRegion < 570/20-2 || perRegion > 570/5 {
		t.Errorf("%d reports of each region in 570 s without a coordinator", perRegion)
	}
}

func TestLostMessagesArriveLater(t *testing.T) {
	n := network{rng: source(1, purposeNetwork), loss: 0.5}
	arrived, late := 0, 0
	for range 1000 {
		err := n.send(0, func(now int64) error {
			arrived++
			if now < micros(minDelay) {
				t.Errorf("arrives after %d us", now)
			}
			if now > micros(maxDelay) {
				late++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := n.advance(micros(time.Hour * 24)); err != nil {
		t.Fatal(err)
	}
	if arrived != 1000 || late < 400 || late > 600 {
		t.Errorf("%d of 1000 arrive, %d of them late", arrived, late)
	}
}
