package rpc

import (
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
