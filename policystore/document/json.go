package document

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weirhq/weir/quota"
)

// jsonReader builds nodes from valid JSON. JSON is almost a part of YAML, but
// has its own escapes and may be indented by tabs.
type jsonReader struct {
	data    []byte
	decoder *json.Decoder
	// offset is a place whose line and column are known.
	offset, line, column int
}

func parseJSON(data []byte) (*quota.Node, error) {
	r := &jsonReader{data: data, decoder: json.NewDecoder(bytes.NewReader(data)), line: 1, column: 1}
	r.decoder.UseNumber()
	return r.value(0)
}

// mark returns a node at the start of the next token.
func (r *jsonReader) mark() *quota.Node {
	at := int(r.decoder.InputOffset())
	for at < len(r.data) && strings.IndexByte(" \t\r\n,:", r.data[at]) >= 0 {
		at++
	}
	for r.offset < at {
		c, size := utf8.DecodeRune(r.data[r.offset:])
		if c == '\n' {
			r.line, r.column = r.line+1, 0
		}
		r.offset += size
		r.column++
	}
	return &quota.Node{Line: r.line, Column: r.column}
}

func (r *jsonReader) value(depth int) (*quota.Node, error) {
	n := r.mark()
	if depth > maxDepth {
		return nil, tooDeep(n.Line, n.Column)
	}
	t, err := r.decoder.Token()
	if err != nil {
		return nil, problem(n.Line, n.Column, "the document is not JSON: "+err.Error(), "correct the syntax")
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '[' {
			return r.sequence(n, depth)
		}
		return r.mapping(n, depth)
	case string:
		n.Kind, n.Text = quota.StringNode, t
	case json.Number:
		n.Kind, n.Text = quota.NumberNode, t.String()
	case bool:
		n.Kind, n.Text = quota.BoolNode, strconv.FormatBool(t)
	default:
		n.Kind = quota.NullNode
	}
	return n, nil
}

func (r *jsonReader) sequence(n *quota.Node, depth int) (*quota.Node, error) {
	n.Kind = quota.SequenceNode
	for r.decoder.More() {
		item, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		n.Items = append(n.Items, item)
	}
	_, err := r.decoder.Token()
	return n, err
}

func (r *jsonReader) mapping(n *quota.Node, depth int) (*quota.Node, error) {
	n.Kind = quota.MappingNode
	for r.decoder.More() {
		name, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		value, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		n.Fields = append(n.Fields, quota.Field{Name: name, Value: value})
	}
	_, err := r.decoder.Token()
	return n, err
}
