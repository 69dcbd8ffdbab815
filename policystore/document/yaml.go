package document

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/scanner"
	"github.com/goccy/go-yaml/token"

	"github.com/weirhq/weir/quota"
)

func parseYAML(data []byte) (root *quota.Node, err error) {
	// The parser is other people's and recursive. What makes it fail in an
	// unexpected way is refused like any other document that cannot be read.
	defer func() {
		if r := recover(); r != nil {
			root, err = nil, problem(0, 0, fmt.Sprintf("the document is not YAML: %v", r), "correct the syntax")
		}
	}()
	tokens, err := tokenize(string(data))
	if err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, syntaxProblem(err)
	}
	body, err := onlyBody(file)
	if err != nil {
		return nil, err
	}
	if body == nil {
		return &quota.Node{Kind: quota.NullNode, Line: 1, Column: 1}, nil
	}
	return convert(body, 0)
}

// onlyBody returns the one document of a file, nil when it is empty.
func onlyBody(file *ast.File) (ast.Node, error) {
	var body ast.Node
	for i, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil || i > 0 && file.Docs[0].Body != nil {
			line, column := position(doc.Body)
			return nil, problem(line, column, "a second document begins", "keep all policies in one list, without --- between them")
		}
		body = doc.Body
	}
	return body, nil
}

// forbidden are the parts of YAML that policy documents do without.
var forbidden = map[token.Type]struct{ reason, remedy string }{
	token.AnchorType:     {"anchors are not supported", "write the value out where it is used"},
	token.AliasType:      {"aliases are not supported", "write the value out, or quote a text that begins with *"},
	token.MergeKeyType:   {"merge keys are not supported", "write the fields out"},
	token.TagType:        {"tags are not supported", "remove the tag, or quote a text that begins with !"},
	token.MappingKeyType: {"explicit keys are not supported", "write name: value, or quote a text that begins with ?"},
	token.DirectiveType:  {"directives are not supported", "remove the line, or quote a text that begins with %"},
}

// maxTokens bounds what is kept of a document before it is parsed: a token
// takes a hundred times the memory of a bracket.
const maxTokens = 2_000_000

// tokenize splits a document into tokens and stops at the first that the
// language leaves out, or that nests so deeply that the recursive parser could
// exhaust the stack.
func tokenize(src string) (token.Tokens, error) {
	var s scanner.Scanner
	s.Init(src)
	var tokens token.Tokens
	var check tokenCheck
	for {
		next, err := s.Scan()
		if errors.Is(err, io.EOF) {
			return tokens, nil
		}
		for _, t := range next {
			if err := check.add(t); err != nil {
				return nil, err
			}
		}
		tokens.Add(next...)
		if len(tokens) > maxTokens {
			return nil, problem(0, 0, fmt.Sprintf("the document has more than %d tokens", maxTokens), "split the policies or shorten them")
		}
	}
}

// tokenCheck follows the nesting of a document token by token.
type tokenCheck struct {
	// flow counts open brackets, entries the levels that the current line opens.
	flow, line, entries int
}

func (c *tokenCheck) add(t *token.Token) error {
	at := t.Position
	if f, ok := forbidden[t.Type]; ok {
		return problem(at.Line, at.Column, f.reason, f.remedy)
	}
	if at.Line != c.line {
		c.line, c.entries = at.Line, 0
		// Every level of a block begins further to the right.
		if c.flow == 0 && at.Column > maxDepth*8 && t.Type != token.CommentType {
			return tooDeep(at.Line, at.Column)
		}
	}
	switch t.Type {
	case token.SequenceStartType, token.MappingStartType:
		c.flow++
	case token.SequenceEndType, token.MappingEndType:
		c.flow--
	case token.SequenceEntryType, token.MappingValueType:
		if c.flow == 0 {
			c.entries++
		}
	case token.InvalidType:
		return problem(at.Line, at.Column, "the document is not YAML: "+invalidReason(t), "correct the syntax")
	}
	if c.flow > maxDepth || c.entries > maxDepth {
		return tooDeep(at.Line, at.Column)
	}
	return nil
}

func invalidReason(t *token.Token) string {
	if strings.Contains(t.Origin, "\t") {
		return "a tab is used for indentation"
	}
	if t.Error != "" {
		return t.Error
	}
	return "unexpected character"
}

func tooDeep(line, column int) error {
	return problem(line, column, fmt.Sprintf("the document is nested deeper than %d levels", maxDepth), "flatten it; a policy needs six levels")
}

// syntaxProblem turns the parser's error into a problem with its place.
func syntaxProblem(err error) error {
	var syntax yaml.Error
	if !errors.As(err, &syntax) {
		return problem(0, 0, "the document is not YAML: "+firstLine(err.Error()), "correct the syntax")
	}
	line, column := 0, 0
	if t := syntax.GetToken(); t != nil && t.Position != nil {
		line, column = t.Position.Line, t.Position.Column
	}
	return problem(line, column, "the document is not YAML: "+firstLine(syntax.GetMessage()), "correct the syntax")
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

func position(n ast.Node) (line, column int) {
	t := n.GetToken()
	if t == nil || t.Position == nil {
		return 0, 0
	}
	return t.Position.Line, t.Position.Column
}

// convert builds the node of one value.
func convert(n ast.Node, depth int) (*quota.Node, error) {
	out := &quota.Node{}
	out.Line, out.Column = position(n)
	if depth > maxDepth {
		return nil, tooDeep(out.Line, out.Column)
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		return mapping(out, n.Values, depth)
	case *ast.MappingValueNode:
		return mapping(out, []*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		out.Kind = quota.SequenceNode
		for _, v := range n.Values {
			item, err := convert(v, depth+1)
			if err != nil {
				return nil, err
			}
			out.Items = append(out.Items, item)
		}
		return out, nil
	}
	return scalar(out, n)
}

func mapping(out *quota.Node, values []*ast.MappingValueNode, depth int) (*quota.Node, error) {
	out.Kind = quota.MappingNode
	for i, v := range values {
		name, err := convert(v.Key, depth+1)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			// The parser's own token of a mapping is a colon; people look for the first name.
			if t := v.Key.GetToken(); t != nil && out.Line == name.Line && out.Column > name.Column {
				out.Line, out.Column = name.Line, name.Column
			}
		}
		value, err := convert(v.Value, depth+1)
		if err != nil {
			return nil, err
		}
		if value.Kind == quota.NullNode && value.Text == "" {
			value.Line, value.Column = name.Line, name.Column
		}
		out.Fields = append(out.Fields, quota.Field{Name: name, Value: value})
	}
	return out, nil
}

var plainNumber = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)

func scalar(out *quota.Node, n ast.Node) (*quota.Node, error) {
	switch n := n.(type) {
	case *ast.NullNode:
		out.Kind, out.Text = quota.NullNode, n.Token.Value
		if n.Token.Type == token.ImplicitNullType {
			out.Text = ""
		}
	case *ast.StringNode:
		out.Kind, out.Text = quota.StringNode, n.Value
		// The parser takes numbers that it cannot represent for texts.
		if n.Token.Type == token.StringType && plainNumber.MatchString(n.Value) {
			out.Kind = quota.NumberNode
		}
	case *ast.LiteralNode:
		out.Kind, out.Text = quota.StringNode, n.Value.Value
	case *ast.BoolNode:
		out.Kind, out.Text = quota.BoolNode, n.Token.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		out.Kind, out.Text = quota.NumberNode, n.GetToken().Value
	default:
		return nil, problem(out.Line, out.Column, "a "+n.Type().String()+" is not supported here", "write a text, a number, a list or a mapping")
	}
	return out, nil
}
