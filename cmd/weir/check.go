package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// question is what check and explain ask.
type question struct {
	conn      connection
	cost      int64
	requestID string
	policies  []string
	out       output
}

func (q *question) flags(cmd *cobra.Command) {
	q.conn.flags(cmd, cmd.Flags(), rpc.DefaultCallTimeout)
	cmd.Flags().Int64Var(&q.cost, "cost", 1, "tokens that the request spends; 0 asks without spending")
	cmd.Flags().StringSliceVar(&q.policies, "policy", nil, "ask these policies only")
	q.out.flags(cmd.Flags())
	completeFlag(cmd, "output", cobra.FixedCompletions(formats, noFiles))
}

func (q *question) client(cmd *cobra.Command) (*rpc.Client, error) {
	if err := q.out.check(); err != nil {
		return nil, err
	}
	cfg, err := q.conn.config(cmd.Flags())
	if err != nil {
		return nil, err
	}
	client, err := rpc.NewClient(cfg)
	if err != nil {
		return nil, usagef("--server (or WEIR_SERVER, or the context): %w", err)
	}
	return client, nil
}

func (q *question) request(args []string) (quota.Request, error) {
	r := quota.Request{Attributes: map[string]string{}, RequestID: q.requestID, Policies: q.policies}
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return r, usagef("%q: write attributes as name=value, for example plan=free", arg)
		}
		if _, twice := r.Attributes[name]; twice {
			return r, usagef("attribute %q is given twice", name)
		}
		r.Attributes[name] = value
	}
	if q.cost < 0 || q.cost > rpc.MaxCost {
		return r, usagef("--cost %d: use 0 to %d", q.cost, rpc.MaxCost)
	}
	r.Cost = quota.Tokens(q.cost) * quota.Token
	return r, nil
}

func newCheck(env *environment) *cobra.Command {
	q := question{conn: connection{env: env, kind: regionalNode}}
	var peek bool
	cmd := &cobra.Command{
		Use:   "check [name=value ...]",
		Short: "Ask a regional node whether a request may pass",
		Long: "Asks a regional node whether a request with these attributes may pass, and spends its cost.\n" +
			"Exits with 0 when it may, 3 when it is denied.",
		Example: "  weir check plan=free apiKey=ak_1\n  weir check route='POST /auth/login' ip=203.0.113.7 username=ada --peek -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := q.client(cmd)
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }()
			request, err := q.request(args)
			if err != nil {
				return err
			}
			ask := client.Check
			if peek {
				ask = client.Peek
			}
			answer, err := ask(cmd.Context(), request)
			if err != nil {
				return err
			}
			err = q.out.print(env.stdout, answer.JSON, func(w io.Writer) error { return answerTable(w, answer) })
			if err == nil && !answer.Allowed {
				err = errDenied
			}
			return err
		},
	}
	q.flags(cmd)
	cmd.Flags().BoolVar(&peek, "peek", false, "decide without spending")
	cmd.Flags().StringVar(&q.requestID, "request-id", "", "makes a repeat within a minute return the first answer")
	return cmd
}

func answerTable(w io.Writer, a *rpc.Answer) error {
	verdict := "allowed"
	if !a.Allowed {
		verdict = "denied"
	}
	fmt.Fprintln(w, verdict)
	if len(a.Decisions) == 0 {
		_, err := fmt.Fprintln(w, "no policy matches")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "POLICY\tDECISION\tLIMIT\tREMAINING\tRETRY AFTER\tRESET AFTER\tSOURCE")
	for _, d := range a.Decisions {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			d.PolicyID, decision(d), amount(d, d.Limit), amount(d, d.Remaining), span(d.RetryAfter), span(d.ResetAfter), d.Source)
	}
	return t.Flush()
}

func decision(d quota.Decision) string {
	text := "allowed"
	if !d.Allowed {
		text = "denied"
		if d.Reason != quota.ReasonLimit {
			text += " (" + d.Reason.String() + ")"
		}
	}
	if d.Shadow {
		text += " (shadow)"
	}
	return text
}

func amount(d quota.Decision, n int64) string {
	if d.Unlimited {
		return "unlimited"
	}
	return strconv.FormatInt(n, 10)
}

// span rounds up, so that a wait that is followed is long enough.
func span(d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	return (time.Duration(math.Ceil(d.Seconds()*1000)) * time.Millisecond).String()
}

func newExplain(env *environment) *cobra.Command {
	q := question{conn: connection{env: env, kind: regionalNode}}
	cmd := &cobra.Command{
		Use:     "explain [name=value ...]",
		Short:   "Say why a request is limited or not, and by what",
		Example: "  weir explain plan=free apiKey=ak_1",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := q.client(cmd)
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }()
			request, err := q.request(args)
			if err != nil {
				return err
			}
			e, err := client.Explain(cmd.Context(), request)
			if err != nil {
				return err
			}
			return q.out.print(env.stdout, e.JSON, func(w io.Writer) error { return explainTable(w, e) })
		},
	}
	q.flags(cmd)
	return cmd
}

// explainLease says what a share of partition mode strict depends on.
func explainLease(w io.Writer, p *quota.PolicyExplanation) {
	switch {
	case !p.Leased:
	case p.LeaseLeft > 0:
		fmt.Fprintf(w, "  lease of the region\t%s left, %s without it\n", p.LeaseLeft.Round(time.Second), ofPeriod(p.Permanent))
	default:
		fmt.Fprintln(w, "  lease of the region\tover: this is what is left until the coordinator answers")
	}
}

func explainTable(w io.Writer, e *rpc.Explanation) error {
	verdict := "would be allowed"
	if !e.Allowed {
		verdict = "would be denied"
	}
	fmt.Fprintf(w, "%s, by policy revision %d\n", verdict, e.Revision)
	for _, p := range e.Policies {
		if !p.Matched {
			fmt.Fprintf(w, "\n%s does not apply: %s\n", p.PolicyID, p.WhyNot)
			continue
		}
		fmt.Fprintf(w, "\n%s: %s\n", p.PolicyID, decision(p.Decision))
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "  limit\t%s (%s)\n", amount(p.Decision, p.Decision.Limit), p.Scope)
		fmt.Fprintf(t, "  remaining here\t%s\n", amount(p.Decision, p.Decision.Remaining))
		if p.Scope == quota.Global && p.Version > 0 {
			fmt.Fprintf(t, "  share of the region\t%s, version %d", ofPeriod(p.Share), p.Version)
			if p.ShareAge > 0 {
				fmt.Fprintf(t, ", %s old", p.ShareAge.Round(time.Second))
			}
			fmt.Fprintln(t)
			explainLease(t, &p)
		}
		if p.Bucket != "" {
			fmt.Fprintf(t, "  store key\t%s\n", p.Bucket)
		}
		if p.Suggestion != "" {
			fmt.Fprintf(t, "  what would help\t%s\n", p.Suggestion)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
