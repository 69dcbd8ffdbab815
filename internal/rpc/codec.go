package rpc

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// strictJSON is the JSON codec of the server. Unlike Connect's own it refuses
// unknown fields: JSON is typed by hand, and a misspelt "cost" that is silently
// left out charges the wrong amount. Binary messages still ignore what they do
// not know, so that nodes and clients of different versions work together.
type strictJSON struct{ name string }

func (c strictJSON) Name() string { return c.name }

func (strictJSON) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, errNotProto(message)
	}
	return protojson.Marshal(m)
}

func (strictJSON) MarshalAppend(dst []byte, message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, errNotProto(message)
	}
	return protojson.MarshalOptions{}.MarshalAppend(dst, m)
}

func (strictJSON) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return errNotProto(message)
	}
	if len(data) == 0 {
		return errors.New("the body is empty; send a JSON object, at least {}")
	}
	if err := protojson.Unmarshal(data, m); err != nil {
		return fmt.Errorf("%s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}

func errNotProto(message any) error { return fmt.Errorf("%T is not a protobuf message", message) }

// jsonCodecs replaces both names under which Connect looks for JSON.
func jsonCodecs() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(strictJSON{"json"}),
		connect.WithCodec(strictJSON{"json; charset=utf-8"}),
	)
}
