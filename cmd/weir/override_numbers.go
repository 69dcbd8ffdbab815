package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/quota"
)

// numbers are the flags that replace the numbers of a policy. They are named as
// in policy documents.
type numbers struct {
	capacity, refill, limitText string
	unlimited                   bool
}

func (n *numbers) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&n.capacity, "capacity", "", "burst of a token bucket")
	cmd.Flags().StringVar(&n.refill, "refill", "", "sustained rate of a token bucket, such as 100/1m")
	cmd.Flags().StringVar(&n.limitText, "limit", "", "entries of a sliding log in the policy's window")
	cmd.Flags().BoolVar(&n.unlimited, "unlimited", false, "no limit for this key")
	for _, name := range []string{"capacity", "refill", "limit"} {
		completeFlag(cmd, name, cobra.NoFileCompletions)
	}
}

// limit returns the numbers in the terms of the policy's algorithm. All are
// stated: what an override left out would change with the policy unseen.
func (n *numbers) limit(cmd *cobra.Command, p *quota.Policy) (l quota.Limit, unlimited bool, err error) {
	given := cmd.Flags().Changed
	bucket := given("capacity") || given("refill")
	switch {
	case n.unlimited:
		if bucket || given("limit") {
			err = usagef("--unlimited goes without numbers")
		}
		return l, true, err
	case p.Algorithm == quota.TokenBucket:
		if given("limit") || !given("capacity") || !given("refill") {
			return l, false, usagef("policy %s is a token bucket; state --capacity and --refill, or --unlimited", p.ID)
		}
		if l.Capacity, err = parseTokens("--capacity", n.capacity); err != nil {
			return l, false, err
		}
		l.Refill, l.Period, err = parseRefill(n.refill)
		return l, false, err
	}
	if bucket || !given("limit") {
		return l, false, usagef("policy %s is a %s; state --limit, or --unlimited", p.ID, p.Algorithm)
	}
	l.Period = p.Limit.Period
	l.Capacity, err = parseTokens("--limit", n.limitText)
	return l, false, err
}

// parseTokens reads a number of tokens, with up to three decimals. Which of them fit
// a policy is for the server to say.
func parseTokens(flag, text string) (quota.Tokens, error) {
	whole, decimals, dotted := strings.Cut(text, ".")
	digits := strings.TrimRight(decimals, "0")
	if whole == "" || dotted && decimals == "" || len(digits) > 3 || strings.ContainsFunc(whole+decimals, func(r rune) bool { return r < '0' || r > '9' }) {
		return 0, usagef("%s %q: write a plain number, such as 100", flag, text)
	}
	digits += strings.Repeat("0", 3-len(digits))
	n, err := strconv.ParseInt(whole+digits, 10, 64)
	if err != nil || quota.Tokens(n) > quota.MaxTokens {
		return 0, usagef("%s %q: that is above the largest number, %s (2^40); --unlimited is no limit at all", flag, text, quota.MaxTokens)
	}
	return quota.Tokens(n), nil
}

// parseRefill reads 100/1m.
func parseRefill(text string) (quota.Tokens, time.Duration, error) {
	number, period, ok := strings.Cut(text, "/")
	if !ok {
		return 0, 0, usagef("--refill %q: write a number and a period, such as 100/1m", text)
	}
	tokens, err := parseTokens("--refill", number)
	if err != nil {
		return 0, 0, err
	}
	every, err := quota.ParseDuration(period)
	if err != nil {
		return 0, 0, usagef("--refill %q: the period %w", text, err)
	}
	return tokens, every, nil
}

// expiry reads a duration from now on, or a time. Zero is never.
func expiry(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		if !at.After(now) {
			return time.Time{}, usagef("--expires %s: that is past", text)
		}
		return at, nil
	}
	d, err := quota.ParseDuration(text)
	if err == nil && d <= 0 {
		err = errors.New("is no time at all")
	}
	if err != nil {
		return time.Time{}, usageError{fmt.Errorf("--expires %q: it %w; write a duration such as 24h or 7d, or a time such as 2030-01-31T00:00:00Z", text, err)}
	}
	return now.Add(d), nil
}
