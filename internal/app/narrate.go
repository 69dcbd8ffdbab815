package app

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// welcome says where everything is and what to paste first.
func (d *Dev) welcome(out io.Writer) {
	var b strings.Builder
	fmt.Fprintf(&b, "\nWeir dev: one coordinator and %d regions in this process. No login, no persistence: not for production.\n\n", len(d.Regions))
	fmt.Fprintf(&b, "  %-9s %s/\n", "console", d.Coordinator)
	for i, url := range d.Regions {
		fmt.Fprintf(&b, "  %-9s %s\n", DevRegions[i], url)
	}
	fmt.Fprintf(&b, "\nTry:\n\n  curl -s %s/weir.v1.LimiterService/Check -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"attributes\":{\"plan\":\"free\",\"apiKey\":\"ak_1\"}}'\n\n", d.Regions[0])
	_, _ = io.WriteString(out, b.String())
}

// narrate writes a line after each rebalance: what the busiest quota was asked for in
// each region, and how its limit is split.
func (d *Dev) narrate(ctx context.Context, out io.Writer) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.rebalanced:
			if line := rebalanceLine(d.coordinator.Status(), d.traffic.counts()); line != "" {
				_, _ = fmt.Fprintf(out, "%s  %s\n", time.Now().Format(time.TimeOnly), line)
			}
		}
	}
}

func rebalanceLine(s coordinator.Status, clients []clientCount) string {
	var busiest *coordinator.QuotaStatus
	most := 0.0
	for i := range s.Quotas {
		total := 0.0
		for _, r := range s.Quotas[i].Regions {
			total += r.Demand
		}
		if total > most {
			busiest, most = &s.Quotas[i], total
		}
	}
	if busiest == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: demand %.0f of %.0f/s", busiest.ID.Policy, most, busiest.Limit.PerSecond())
	for _, r := range busiest.Regions {
		fmt.Fprintf(&b, " | %s %.1f/s has %.0f %%", r.Region, r.Demand, percentOf(r.Share, busiest.Limit))
	}
	var admitted, denied int64
	for _, c := range clients {
		admitted, denied = admitted+c.Admitted, denied+c.Denied
	}
	fmt.Fprintf(&b, " | clients: %d admitted, %d denied", admitted, denied)
	return b.String()
}

// percentOf is the part of a limit's sustained rate, or of its capacity for a log.
func percentOf(s quota.Share, l quota.Limit) float64 {
	switch {
	case l.Refill > 0:
		return 100 * float64(s.Refill) / float64(l.Refill)
	case l.Capacity > 0:
		return 100 * float64(s.Capacity) / float64(l.Capacity)
	}
	return 0
}
