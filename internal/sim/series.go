package sim

import (
	"github.com/weirhq/weir/quota"
)

// series records one entrant per second and region.
type series struct {
	seconds []float64
	demand  [][]float64
	denied  [][]float64
	share   [][]float64

	offered, admitted []float64 // of the present second
}

func newSeries(regions int) *series {
	return &series{
		demand: make([][]float64, regions), denied: make([][]float64, regions), share: make([][]float64, regions),
		offered: make([]float64, regions), admitted: make([]float64, regions),
	}
}

func (s *series) add(region, offered, admitted int) {
	s.offered[region] += float64(offered)
	s.admitted[region] += float64(admitted)
}

// endSecond records the second that ends now, with the shares in force at its end.
func (s *series) endSecond(t float64, f *fleet, l quota.Limit) {
	if t <= 0 {
		return // the first second begins
	}
	s.seconds = append(s.seconds, t)
	for i, st := range f.stores {
		s.demand[i] = append(s.demand[i], s.offered[i])
		s.denied[i] = append(s.denied[i], s.offered[i]-s.admitted[i])
		share := quota.Limit{Capacity: st.share.Capacity, Refill: st.share.Refill, Period: l.Period}
		s.share[i] = append(s.share[i], share.PerSecond())
		s.offered[i], s.admitted[i] = 0, 0
	}
}

// Plot is demand, shares and denials of every region over time, of one algorithm.
type Plot struct {
	Scenario, About, Algorithm string
	Regions                    []quota.Region
	// Limit is the limit's rate in tokens per second, as are all values.
	Limit float64
	// From and To are the event, in seconds.
	From, To float64
	// Seconds are the instants of the values.
	Seconds               []float64
	Demand, Share, Denied [][]float64
}

func (c *course) plotOf(e *entrant) *Plot {
	return &Plot{
		Scenario: c.scenario.Name, About: c.scenario.About, Algorithm: e.name, Regions: c.regions,
		Limit: c.policy.Limit.PerSecond(), From: c.scenario.event.from, To: c.scenario.event.to,
		Seconds: e.plot.seconds, Demand: e.plot.demand, Share: e.plot.share, Denied: e.plot.denied,
	}
}
