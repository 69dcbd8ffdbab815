package lua

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/quota"
)

// The kinds of acquire.lua and refund.lua.
const (
	bucketRegional = 1
	bucketShared   = 2
	logRegional    = 3
	logShared      = 4
	bucketOverride = 5
	logOverride    = 6
)

// kindOf returns the script's kind of an entry. Shared ones read a share record.
func kindOf(e quota.Entry) int {
	log := e.Algorithm == quota.SlidingLog
	switch shared, override := e.ShareKey != "", e.Limit != e.Base; {
	case log && shared && override:
		return logOverride
	case log && shared:
		return logShared
	case log:
		return logRegional
	case shared && override:
		return bucketOverride
	case shared:
		return bucketShared
	}
	return bucketRegional
}

// Acquire charges every entry of an attempt, or none, in one script call. It waits
// until the store answers or ctx ends; what was already sent then still counts.
//
// Errors: quota.ErrUninitialised when the stripe has no region record,
// quota.ErrOverloaded when too many checks wait for the shard, quota.ErrInvalid for
// entries that no script can decide, else an *Error, which is quota.ErrUnavailable.
func (s *Store) Acquire(ctx context.Context, a quota.Attempt) (quota.Outcome, error) {
	if err := s.check(a); err != nil {
		return quota.Outcome{}, err
	}
	if len(a.Entries) == 0 {
		return quota.Outcome{Allowed: true}, nil
	}
	remember := a.RequestID != "" && !a.Peek && a.Cost > 0
	// Each missing share record costs one more round, once in the life of a policy
	// on a stripe.
	for range len(a.Entries) + 1 {
		cmd, err := s.do(ctx, a.Entries[0].Bucket, s.acquireArgs(a, remember))
		if err != nil {
			return quota.Outcome{}, err
		}
		out, missing, err := decode(cmd.Val(), a)
		if err != nil {
			return quota.Outcome{}, err
		}
		if missing < 0 {
			return out, nil
		}
		if err := s.writeFloor(ctx, a.Stripe, a.Entries[missing]); err != nil {
			return quota.Outcome{}, err
		}
	}
	return quota.Outcome{}, &Error{kind: "script", cause: fmt.Errorf("share records of stripe %d vanish as they are written", a.Stripe)}
}

func (s *Store) check(a quota.Attempt) error {
	if a.Stripe < 0 || a.Stripe >= s.stripes {
		return fmt.Errorf("stripe %d: the region has %d: %w", a.Stripe, s.stripes, quota.ErrInvalid)
	}
	if a.Cost < 0 || a.Cost > quota.MaxTokens {
		return fmt.Errorf("cost %s: it must be 0 to %s: %w", a.Cost, quota.MaxTokens, quota.ErrInvalid)
	}
	for _, e := range a.Entries {
		switch {
		case e.Algorithm != quota.TokenBucket && e.Algorithm != quota.SlidingLog:
			return fmt.Errorf("bucket %s: no script for algorithm %s: %w", e.Bucket, e.Algorithm, quota.ErrInvalid)
		case e.Limit.Period < time.Microsecond:
			return fmt.Errorf("bucket %s: period %s is below a microsecond: %w", e.Bucket, e.Limit.Period, quota.ErrInvalid)
		case e.Algorithm == quota.TokenBucket && e.Limit.Capacity > 0 && e.Limit.Refill <= 0:
			return fmt.Errorf("bucket %s: a capacity without refill: %w", e.Bucket, quota.ErrInvalid)
		case e.Algorithm == quota.SlidingLog && a.Cost%quota.Token != 0:
			return fmt.Errorf("cost %s: a log counts whole tokens: %w", a.Cost, quota.ErrInvalid)
		}
	}
	return nil
}

func (s *Store) acquireArgs(a quota.Attempt, remember bool) []any {
	keys := make([]any, 0, 2+2*len(a.Entries))
	global := false
	for _, e := range a.Entries {
		if e.ShareKey != "" {
			global = true
		}
	}
	mode, region := "0", "0"
	if a.Peek {
		mode = "p"
	} else if remember {
		mode = strconv.FormatInt(quota.IdempotencyTTL.Milliseconds(), 10)
	}
	if global {
		region = "1"
		keys = append(keys, s.regionKey(a.Stripe))
	}
	args := make([]any, 0, 3+4*len(a.Entries))
	args = append(args, int64(a.Cost), mode, region)
	for _, e := range a.Entries {
		keys = append(keys, e.Bucket)
		if e.ShareKey != "" {
			keys = append(keys, e.ShareKey)
		}
		args = appendEntry(args, e)
	}
	if remember {
		keys = append(keys, s.replyKey(a.Stripe, a.RequestID))
	}
	return command(s.scripts.acquire.sha, keys, args)
}

// decimal writes a number exactly, and with a point: not every Lua reads a whole
// number beyond 63 bits.
func decimal(x float64) string {
	s := strconv.FormatFloat(x, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func command(sha string, keys, args []any) []any {
	cmd := make([]any, 0, 3+len(keys)+len(args))
	cmd = append(cmd, "evalsha", sha, len(keys))
	cmd = append(cmd, keys...)
	return append(cmd, args...)
}

func appendEntry(args []any, e quota.Entry) []any {
	kind := kindOf(e)
	if e.Shadow {
		args = append(args, -kind)
	} else {
		args = append(args, kind)
	}
	switch kind {
	case bucketRegional:
		refill, period := e.Limit.LowestTerms()
		args = append(args, int64(e.Limit.Capacity), refill, period)
	case logRegional:
		args = append(args, int64(e.Limit.Capacity), e.Limit.Period.Microseconds())
	case bucketOverride:
		s := e.Scaling()
		args = append(args, int64(s.Limit), int64(s.Base), decimal(s.Refill), decimal(s.Life))
	case logOverride:
		s := e.Scaling()
		args = append(args, int64(s.Limit), int64(s.Base))
	}
	return args
}

// decode reads the reply of acquire.lua. missing is the entry whose share record is
// missing, or -1.
func decode(reply any, a quota.Attempt) (out quota.Outcome, missing int, err error) {
	numbers, replayed, err := integers(reply)
	if err != nil {
		return out, -1, err
	}
	if len(numbers) == 0 {
		return out, -1, &Error{kind: "script", ran: true, cause: fmt.Errorf("empty reply")}
	}
	switch numbers[0] {
	case -1:
		return out, -1, fmt.Errorf("stripe %d: %w", a.Stripe, quota.ErrUninitialised)
	case -2:
		if len(numbers) != 2 || numbers[1] < 1 || int(numbers[1]) > len(a.Entries) {
			return out, -1, &Error{kind: "script", cause: fmt.Errorf("unknown reply %v", numbers)}
		}
		return out, int(numbers[1]) - 1, nil
	}
	width := 5
	if a.Peek {
		width = 7
	}
	if len(numbers) != 2+width*len(a.Entries) {
		if replayed {
			return out, -1, quota.ErrRequestID
		}
		return out, -1, &Error{kind: "script", ran: true, cause: fmt.Errorf("%d numbers for %d entries", len(numbers), len(a.Entries))}
	}
	out = quota.Outcome{Allowed: numbers[0] == 1, At: numbers[1], Replayed: replayed}
	out.Verdicts = make([]quota.Verdict, len(a.Entries))
	for i := range out.Verdicts {
		n := numbers[2+i*width:]
		out.Verdicts[i] = quota.Verdict{
			Allowed: n[0] == 1, NeverFits: n[0] == -1, Level: quota.Tokens(n[1]),
			RetryAfter: microseconds(n[2]), ResetAfter: microseconds(n[3]), Version: max(n[4], -n[4]), Tracked: n[4] < 0,
		}
		if a.Peek {
			out.Verdicts[i].Share = quota.Share{Capacity: quota.Tokens(n[5]), Refill: quota.Tokens(n[6])}
		}
	}
	return out, -1, nil
}

func microseconds(us int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Microsecond)
	return time.Duration(min(us, most)) * time.Microsecond
}

// integers reads a list of integers, or the string of them that was remembered.
func integers(reply any) (numbers []int64, remembered bool, err error) {
	switch v := reply.(type) {
	case []any:
		numbers = make([]int64, 0, len(v))
		for i, x := range v {
			n, ok := x.(int64)
			if !ok {
				return nil, false, &Error{kind: "script", ran: true, cause: fmt.Errorf("element %d is a %T", i, x)}
			}
			numbers = append(numbers, n)
		}
		return numbers, false, nil
	case string:
		for field := range strings.FieldsSeq(v) {
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return nil, true, &Error{kind: "script", cause: fmt.Errorf("remembered outcome: %w", err)}
			}
			numbers = append(numbers, n)
		}
		return numbers, true, nil
	}
	return nil, false, &Error{kind: "script", ran: true, cause: fmt.Errorf("reply is a %T", reply)}
}

// writeFloor gives a policy that is new on a stripe its floor, which is the region's
// in any case. Whoever comes first wins; the others find the record.
func (s *Store) writeFloor(ctx context.Context, stripe int, e quota.Entry) error {
	args := append([]any{"*", 0}, grantArgs(e.FloorGrant())...)
	cmd, err := s.do(ctx, e.Bucket, command(s.scripts.apply.sha, []any{s.regionKey(stripe), e.ShareKey}, args))
	if err != nil {
		return err
	}
	numbers, _, err := integers(cmd.Val())
	if err == nil && len(numbers) > 0 && numbers[0] == -1 {
		return fmt.Errorf("stripe %d: %w", stripe, quota.ErrUninitialised)
	}
	return err
}

// Refund gives back tokens of quotas of one stripe, all in one script call. A refund
// whose fate is unknown is not repeated: twice would be a gift.
func (s *Store) Refund(ctx context.Context, stripe int, refunds []quota.Refund) error {
	if len(refunds) == 0 {
		return nil
	}
	keys := make([]any, 0, len(refunds)+1)
	args := make([]any, 1, 1+4*len(refunds))
	args[0] = "0"
	requestID := ""
	for _, r := range refunds {
		if r.Amount < 0 || r.Amount > quota.MaxTokens {
			return fmt.Errorf("refund of %s: it must be 0 to %s: %w", r.Amount, quota.MaxTokens, quota.ErrInvalid)
		}
		keys = append(keys, r.Entry.Bucket)
		args = append(args, kindOf(r.Entry), int64(r.Amount), r.At, int64(r.Entry.Limit.Capacity))
		if r.RequestID != "" {
			requestID = r.RequestID
		}
	}
	if requestID != "" {
		args[0] = "1"
		keys = append(keys, s.replyKey(stripe, requestID))
	}
	_, err := s.do(ctx, refunds[0].Entry.Bucket, command(s.scripts.refund.sha, keys, args))
	return err
}
