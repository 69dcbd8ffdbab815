package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// watchEvery is how often --watch asks.
const watchEvery = time.Second

// clearScreen moves a terminal's cursor to the top and clears what is below.
const clearScreen = "\x1b[H\x1b[2J"

// statusView is what `weir status` is asked for.
type statusView struct {
	*admin
	paging
	filter rpc.SplitFilter
	region string
	search string
	watch  bool
}

func newStatus(env *environment) *cobra.Command {
	v := &statusView{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the leader, the ledger, the regions, and how the limits are split",
		Long: "Shows the leader, the ledger, the regions, and how each global limit is split between them.\n" +
			"Any coordinator can be asked: one that does not lead asks the one that does.\n\n" +
			"As data it prints what the API answers: the overview, then one answer for each page of splits.",
		Example: "  weir status\n  weir status --policy api-free --watch\n  weir status --only pending,not-effective -o json",
		Args:    noArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error { return v.run(cmd) },
	}
	v.admin = newAdmin(env, cmd)
	v.flags(cmd)
	cmd.Flags().StringVar(&v.filter.Policy, "policy", "", "only this policy")
	cmd.Flags().StringVar(&v.search, "search", "", "only splits whose policy or key holds this text")
	cmd.Flags().StringVar(&v.region, "region", "", "only the shares of this region")
	cmd.Flags().StringSliceVar(&v.filter.Any, "only", nil, "only splits that are any of these: "+strings.Join(rpc.SplitConditions(), ", "))
	cmd.Flags().BoolVarP(&v.watch, "watch", "w", false, "show it again each second, until interrupted")
	completeFlag(cmd, "policy", v.ask(policyIDs))
	completeFlag(cmd, "region", cobra.NoFileCompletions)
	completeFlag(cmd, "search", cobra.NoFileCompletions)
	completeFlag(cmd, "only", cobra.FixedCompletions(rpc.SplitConditions(), noFiles))
	return cmd
}

func (v *statusView) run(cmd *cobra.Command) error {
	if err := v.out.check(); err != nil {
		return err
	}
	if v.limit < 0 {
		return usagef("--limit %d: use 1 or more, or 0 for all", v.limit)
	}
	for _, name := range v.filter.Any {
		if !slices.Contains(rpc.SplitConditions(), name) {
			return usagef("--only %q: use %s", name, strings.Join(rpc.SplitConditions(), ", "))
		}
	}
	v.filter.Region = quota.Region(v.region)
	client, err := v.statusClient(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if !v.watch {
		return v.show(cmd.Context(), client, v.env.stdout)
	}
	return v.follow(cmd.Context(), client)
}

func (a *admin) statusClient(cmd *cobra.Command) (*rpc.StatusClient, error) {
	cfg, err := a.conn.config(cmd.Flags())
	if err != nil {
		return nil, err
	}
	client, err := rpc.NewStatusClient(cfg)
	if err != nil {
		return nil, usagef("--coordinator (or WEIR_COORDINATOR, or the context): %w", err)
	}
	return client, nil
}

// follow shows the status each second until the context ends. It draws a screen at
// once, so that it does not flicker. When nobody answers it says so and goes on.
func (v *statusView) follow(ctx context.Context, client *rpc.StatusClient) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	separator := "\n"
	if f, ok := v.env.stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) && v.out.format == "table" {
		separator = clearScreen
	}
	for first := true; ; first = false {
		var screen strings.Builder
		err := v.show(ctx, client, &screen)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, quota.ErrUnavailable):
			return err
		case err != nil:
			fmt.Fprintf(&screen, "no answer: %s\n", cell(err.Error()))
		}
		if !first || separator == clearScreen {
			_, _ = io.WriteString(v.env.stdout, separator)
		}
		if _, err := io.WriteString(v.env.stdout, screen.String()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (v *statusView) show(ctx context.Context, client *rpc.StatusClient, w io.Writer) error {
	o, err := client.Status(ctx)
	if err != nil {
		return err
	}
	if err := v.out.print(w, o.JSON, func(w io.Writer) error { return overviewTable(w, o) }); err != nil {
		return err
	}
	if !o.Complete {
		return nil
	}
	return v.splits(ctx, client, w)
}

// splits prints pages until the limit, each as it comes: there may be very many.
func (v *statusView) splits(ctx context.Context, client *rpc.StatusClient, w io.Writer) error {
	q := rpc.Query{Search: v.search, Page: v.page}
	for listed := 0; ; {
		q.Size = rowsPerCall
		if v.limit > 0 {
			q.Size = min(v.limit-listed, rowsPerCall)
		}
		page, err := client.Splits(ctx, v.filter, q)
		if err != nil {
			return err
		}
		if v.out.format == "yaml" {
			fmt.Fprintln(w, "---")
		}
		if err := v.out.print(w, page.JSON, func(w io.Writer) error { return splitTable(w, page.Items) }); err != nil {
			return err
		}
		listed += len(page.Items)
		q.Page = page.Next
		switch {
		case listed == 0:
			v.note(w, "no splits")
			return nil
		case page.Next == "":
			return nil
		case v.limit > 0 && listed >= v.limit:
			v.note(w, "there are more splits; go on with --page "+page.Next)
			return nil
		}
	}
}

// note tells what is not data: on a screen that is drawn again it belongs to it.
func (v *statusView) note(w io.Writer, text string) {
	if v.watch && v.out.format == "table" {
		fmt.Fprintln(w, text)
		return
	}
	v.env.say("%s", text)
}

func overviewTable(w io.Writer, o *rpc.Overview) error {
	leader := "unknown"
	if o.LeaderName != "" || o.LeaderURL != "" {
		leader = fmt.Sprintf("%s at %s, epoch %d, last beat %s ago", cell(o.LeaderName), cell(o.LeaderURL), o.LeaderEpoch, age(o.BeatAge))
	}
	lines := []string{"leader", leader}
	if !o.Complete {
		return pairs(w, append(lines, "answered by", o.AnsweredBy+", which does not lead", "problem", o.Problem)...)
	}
	quotas := fmt.Sprintf("%d; pending %d, draining %d, not effective %d, small %d", o.Quotas, o.Pending, o.Draining, o.NotEffective, o.Small)
	if o.TrackedKeys > 0 {
		quotas += fmt.Sprintf(", single keys %d (%s tokens parked)", o.TrackedKeys, o.Parked)
	}
	if o.Pending > 0 {
		quotas += fmt.Sprintf("; the oldest grant waits for %s", age(o.OldestPending))
	}
	lines = append(lines,
		"ledger", ledgerText(o), "epoch", strconv.FormatInt(int64(o.Epoch), 10),
		"policies", "revision "+strconv.FormatInt(o.Revision, 10), "quotas", quotas,
		"fullest", strconv.FormatFloat(100*o.Fullest, 'f', 1, 64)+" % of a limit may be in use",
	)
	if err := pairs(w, lines...); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t := newTable(w, "REGION", "LAST REPORT", "GEN", "EPOCH", "REVISION", "PENDING", "DRAINING", "REMARKS")
	for _, r := range o.Regions {
		last := age(r.Age) + " ago"
		if r.LastReport.IsZero() {
			last = "never"
		}
		t.row(string(r.Name), last, short(r.Gen), strconv.FormatInt(int64(r.Epoch), 10), strconv.FormatInt(r.Revision, 10),
			strconv.Itoa(r.Pending), strconv.Itoa(r.Draining), regionRemarks(r))
	}
	return t.flush()
}

func ledgerText(o *rpc.Overview) string {
	switch o.Ledger {
	case "recovering":
		var names []string
		for _, r := range o.Regions {
			if r.Awaited {
				names = append(names, string(r.Name))
			}
		}
		return "recovering: nothing grows until all that they hold is reported by " + strings.Join(names, ", ")
	case "lossy":
		return "lossy: commits may have been lost once, and every region has reported since; see weir ledger trust --help"
	}
	return o.Ledger
}

func regionRemarks(r rpc.RegionState) string {
	var out []string
	for _, remark := range []struct {
		is   bool
		text string
	}{{r.Silent, "silent"}, {r.Awaited, "awaited"}, {r.Leaving, "leaving"}} {
		if remark.is {
			out = append(out, remark.text)
		}
	}
	switch {
	case !r.Leased:
	case r.LeaseLeft > 0:
		out = append(out, "lease "+age(r.LeaseLeft))
	default:
		out = append(out, "lease over")
	}
	return strings.Join(out, ", ")
}

func splitTable(w io.Writer, splits []rpc.SplitState) error {
	if len(splits) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := newTable(w, "SPLIT", "LIMIT", "ALLOCATED", "FREE", "REGION", "DEMAND/S", "SHARE", "SENT", "U", "VERSION", "ACKED", "AGE", "REMARKS")
	for i := range splits {
		s := &splits[i]
		name := s.ID.Policy
		if s.ID.Key != "" {
			name += " " + s.ID.Key
		}
		head := []string{name, limitText(s.Limit, false), shareText(s.Allocated, s.Limit), shareText(s.Unallocated, s.Limit)}
		remarks := splitRemarks(s)
		if len(s.Regions) == 0 {
			t.row(append(head, "", "", "", "", "", "", "", "", remarks)...)
		}
		for k := range s.Regions {
			r := &s.Regions[k]
			t.row(append(head, string(r.Region), strconv.FormatFloat(r.Demand, 'f', 1, 64),
				shareText(r.Share, s.Limit), shareText(r.Sent, s.Limit), shareText(r.Bound, s.Limit),
				strconv.FormatInt(r.Version, 10), strconv.FormatInt(r.AckVersion, 10), shareAge(r), joined(remarks, shareRemarks(r)))...)
			head, remarks = []string{`"`, `"`, `"`, `"`}, ""
		}
	}
	return t.flush()
}

// shareText says a share as limitText says limits, without the period.
func shareText(s quota.Share, l quota.Limit) string {
	if l.Refill > 0 {
		return s.Capacity.String() + " + " + s.Refill.String()
	}
	return s.Capacity.String()
}

// ofPeriod is shareText for where only the share is known.
func ofPeriod(s quota.Share) string { return shareText(s, quota.Limit{Refill: s.Refill}) }

func shareAge(r *rpc.ShareState) string {
	if !r.AgeKnown {
		return "-"
	}
	return age(r.ShareAge)
}

func splitRemarks(s *rpc.SplitState) string {
	var out []string
	if s.Removed {
		out = append(out, "removed")
	}
	if !s.Effective && !s.Removed {
		out = append(out, "not effective")
	}
	if s.Small {
		out = append(out, "small")
	}
	if s.Parked > 0 {
		out = append(out, s.Parked.String()+" parked")
	}
	return strings.Join(out, ", ")
}

func shareRemarks(r *rpc.ShareState) string {
	var out []string
	if r.Pending {
		out = append(out, "pending for "+age(r.PendingAge))
	}
	if r.Draining {
		out = append(out, "draining")
	}
	if r.Reclaimed {
		out = append(out, "reclaimed")
	}
	return strings.Join(out, ", ")
}

func joined(a, b string) string {
	if a != "" && b != "" {
		return a + ", " + b
	}
	return a + b
}

// short is the beginning of a random id, enough to see that it is another one.
func short(id string) string { return id[:min(len(id), 8)] }

// age is a time that has passed, no finer than people read it.
func age(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Minute).String()
}
