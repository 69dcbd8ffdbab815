package quota

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// NodeKind is what a node of a policy document is.
type NodeKind uint8

// The kinds of nodes. The zero value is no kind.
const (
	NullNode NodeKind = iota + 1
	StringNode
	NumberNode
	BoolNode
	SequenceNode
	MappingNode
)

func (k NodeKind) String() string {
	switch k {
	case NullNode:
		return "nothing"
	case StringNode:
		return "a text"
	case NumberNode:
		return "a number"
	case BoolNode:
		return "true or false"
	case SequenceNode:
		return "a list"
	case MappingNode:
		return "a mapping"
	}
	return "unknown"
}

// Node is one value of a policy document, whatever syntax the document was
// written in, with the place where it stands. The order of the document and
// repeated names are kept, so that validation can speak of both.
type Node struct {
	Kind NodeKind
	// Line and Column count from one; zero means that the place is not known.
	Line, Column int
	// Text is the value of a StringNode, and a NumberNode or BoolNode as it was written.
	Text string
	// Items are the elements of a SequenceNode.
	Items []*Node
	// Fields are the entries of a MappingNode.
	Fields []Field
}

// Field is one entry of a mapping. Name is a scalar, Value is never nil.
type Field struct {
	Name, Value *Node
}

// Problem is one thing that is wrong with a policy document.
type Problem struct {
	// Path leads to the value, for example policies[2].refillPerMinute; it is
	// empty when the document as a whole is meant.
	Path string
	// Line and Column count from one; zero means that the place is not known.
	Line, Column int
	// Reason says what is wrong, Remedy what to do about it.
	Reason string
	Remedy string
	// Nearest is the known name closest to an unknown one, if any is close.
	Nearest string
}

// String returns the problem on one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "%d:%d: ", p.Line, p.Column)
	}
	if p.Path != "" {
		b.WriteString(p.Path)
		b.WriteString(": ")
	}
	b.WriteString(p.Reason)
	if p.Nearest != "" {
		fmt.Fprintf(&b, " (did you mean %s?)", p.Nearest)
	}
	if p.Remedy != "" {
		b.WriteString("; ")
		b.WriteString(p.Remedy)
	}
	return b.String()
}

// MaxProblems bounds the problems that one error carries, so that a hostile
// document costs no more memory than its own size.
const MaxProblems = 1000

// DocumentError lists every problem of a policy document in the order of the
// document. It is an ErrInvalid.
type DocumentError struct {
	Problems []Problem
	// Omitted counts the problems beyond MaxProblems.
	Omitted int
}

// NewDocumentError sorts the problems by place.
func NewDocumentError(problems ...Problem) *DocumentError {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return &DocumentError{Problems: problems}
}

// Error lists all problems, one a line.
func (e *DocumentError) Error() string {
	var b strings.Builder
	if n := len(e.Problems) + e.Omitted; n == 1 {
		b.WriteString("policy document: 1 problem")
	} else {
		fmt.Fprintf(&b, "policy document: %d problems", n)
	}
	for _, p := range e.Problems {
		b.WriteString("\n  ")
		b.WriteString(p.String())
	}
	if e.Omitted > 0 {
		fmt.Fprintf(&b, "\n  and %d more", e.Omitted)
	}
	return b.String()
}

// Unwrap makes the error an ErrInvalid.
func (e *DocumentError) Unwrap() error { return ErrInvalid }
