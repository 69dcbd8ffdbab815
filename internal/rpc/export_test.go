package rpc

import (
	"time"

	"google.golang.org/protobuf/proto"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/quota"
)

// What travels, seen from both ends.

func ReportOverTheWire(r quota.Report) (quota.Report, error) {
	m := &weirv1.ReportRequest{}
	err := overTheWire(fromReport(&r), m)
	return toReport(m), err
}

func InstructionsOverTheWire(in quota.Instructions) (out quota.Instructions, unknown int, err error) {
	m := &weirv1.ReportResponse{}
	err = overTheWire(fromInstructions(&in), m)
	out, unknown = toInstructions(m)
	return out, unknown, err
}

func DecisionsOverTheWire(ds []quota.Decision) ([]quota.Decision, error) {
	m := &weirv1.CheckResponse{}
	err := overTheWire(&weirv1.CheckResponse{Decisions: fromDecisions(ds)}, m)
	return toDecisions(m.GetDecisions()), err
}

func ExplanationOverTheWire(e quota.Explanation) (quota.Explanation, error) {
	m := &weirv1.ExplainResponse{}
	err := overTheWire(fromExplanation(&e), m)
	return toExplanation(m), err
}

func overTheWire(from, to proto.Message) error {
	raw, err := proto.Marshal(from)
	if err != nil {
		return err
	}
	return proto.Unmarshal(raw, to)
}

// ToRequest is the whole way of a Check message to the engine.
func ToRequest(m *weirv1.CheckRequest, key string) (quota.Request, error) { return toCheck(m, key) }

// StrictJSON is the server's JSON codec.
func StrictJSON(data []byte, m proto.Message) error { return strictJSON{"json"}.Unmarshal(data, m) }

func PolicyOverTheWire(p *quota.Policy) (*quota.Policy, error) {
	m := &weirv1.Policy{}
	if err := overTheWire(fromPolicy(p), m); err != nil {
		return nil, err
	}
	return toPolicy(m)
}

// ToPolicy is what a client makes of a policy.
func ToPolicy(m *weirv1.Policy) (*quota.Policy, error) { return toPolicy(m) }

// AccessTable lists the procedures that the table of access knows.
func AccessTable() []string {
	var out []string
	for p := range accessTable {
		out = append(out, p)
	}
	return out
}

// Throttle is the throttle of failed attempts.
type Throttle struct{ t *throttle }

func NewThrottle(now func() time.Time) Throttle { return Throttle{newThrottle(now)} }

func (t Throttle) Spend(addr string) bool { return t.t.spend(addr) }

func (t Throttle) Len() int { return t.t.model.Len() }
