package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/weirhq/weir/quota"
)

const (
	// MaxBytes bounds the size of a document.
	MaxBytes = 4 << 20
	// maxDepth bounds the nesting of a document; policies need six levels.
	maxDepth = 32
)

// Policies reads and validates a document. The error is a *quota.DocumentError
// that lists every problem; a document that is not even YAML has one.
func Policies(data []byte) ([]*quota.Policy, error) {
	root, err := Parse(data)
	if err != nil {
		return nil, err
	}
	return quota.ParsePolicies(root)
}

// Parse reads the text of a document, YAML or JSON, without judging what it
// says. The error is a *quota.DocumentError. Nothing of data is kept.
func Parse(data []byte) (*quota.Node, error) {
	if len(data) > MaxBytes {
		return nil, problem(0, 0, fmt.Sprintf("the document is larger than %d MiB", MaxBytes>>20), "split the policies or shorten them")
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if err := checkText(data); err != nil {
		return nil, err
	}
	if start := bytes.TrimLeft(data, " \t\r\n"); len(start) > 0 && start[0] == '{' && json.Valid(data) {
		return parseJSON(data)
	}
	return parseYAML(data)
}

func problem(line, column int, reason, remedy string) error {
	return quota.NewDocumentError(quota.Problem{Line: line, Column: column, Reason: reason, Remedy: remedy})
}

// checkText refuses bytes that are no text, which most often means that the
// file is not what it was taken for.
func checkText(data []byte) error {
	line, column := 1, 1
	for rest := data; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		switch {
		case r == utf8.RuneError && size == 1:
			return problem(line, column, fmt.Sprintf("the byte 0x%02x is not UTF-8", rest[0]), "save the file as UTF-8")
		case r == '\n':
			line, column = line+1, 0
		case r < ' ' && r != '\t' && r != '\r' || r == 0x7f:
			return problem(line, column, fmt.Sprintf("the control character %U is not allowed", r), "remove it, or write it as an escape in double quotes")
		}
		rest = rest[size:]
		column++
	}
	return nil
}
