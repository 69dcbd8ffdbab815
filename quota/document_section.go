package quota

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// decoder gathers the problems of one document.
type decoder struct {
	problems []Problem
	omitted  int
}

// report adds a problem at n. The nearest known name is optional.
func (d *decoder) report(path string, n *Node, c *complaint, near ...string) {
	if len(d.problems) == MaxProblems {
		d.omitted++
		return
	}
	p := Problem{Path: path, Reason: c.reason, Remedy: c.remedy}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	if len(near) > 0 {
		p.Nearest = near[0]
	}
	d.problems = append(d.problems, p)
}

func (d *decoder) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	e := NewDocumentError(d.problems...)
	e.Omitted = d.omitted
	return e
}

// place names where a node stands, for messages that speak of two places.
func place(n *Node) string {
	if n == nil || n.Line == 0 {
		return "an earlier place"
	}
	return fmt.Sprintf("line %d, column %d", n.Line, n.Column)
}

// section is one mapping of the document whose field names are known.
type section struct {
	d      *decoder
	path   string
	node   *Node
	fields map[string]*Node
	// meant holds the known names that unknown ones were taken for. That they
	// are missing is no second problem.
	meant map[string]bool
}

// hint replaces the nearest name for an unknown field that people write often.
type hint struct{ nearest, remedy string }

// section opens n as a mapping, and reports fields that are unknown or repeated.
func (d *decoder) section(path string, n *Node, known []string, hints map[string]hint) (*section, bool) {
	s := &section{d: d, path: path, node: n, fields: map[string]*Node{}, meant: map[string]bool{}}
	if n.Kind != MappingNode {
		d.report(path, n, &complaint{"must be a mapping, is " + n.Kind.String(), "write field: value pairs"})
		return s, false
	}
	names := map[string]*Node{}
	for _, f := range n.Fields {
		name := f.Name.Text
		if first, ok := names[name]; ok {
			d.report(s.at(name), f.Name, repeatedField(first))
			continue
		}
		names[name] = f.Name
		if slices.Contains(known, name) {
			s.fields[name] = f.Value
			continue
		}
		c := &complaint{reason: "unknown field", remedy: "remove it"}
		if h, ok := hints[strings.ToLower(name)]; ok {
			if h.remedy != "" {
				c.remedy = h.remedy
			}
			s.meant[h.nearest] = true
			d.report(s.at(name), f.Name, c, h.nearest)
			continue
		}
		near := nearest(name, known)
		s.meant[near] = true
		if near == "" {
			c.remedy = "remove it; the fields here are " + strings.Join(known, ", ")
		} else {
			c.remedy = "correct or remove it"
		}
		d.report(s.at(name), f.Name, c, near)
	}
	return s, true
}

func repeatedField(first *Node) *complaint {
	return &complaint{"is given twice, first at " + place(first), "keep one of them"}
}

// at returns the path of a field.
func (s *section) at(name string) string {
	if !ValidAttributeName(name) {
		name = "[" + quoteShort(name) + "]"
		return s.path + name
	}
	if s.path == "" {
		return name
	}
	return s.path + "." + name
}

func (s *section) has(name string) bool { return s.fields[name] != nil }

// report adds a problem of a field, or of the section when the field is missing.
func (s *section) report(name string, c *complaint, near ...string) {
	n := s.fields[name]
	if n == nil {
		n = s.node
	}
	s.d.report(s.at(name), n, c, near...)
}

// require reports a field that is missing.
func (s *section) require(name, remedy string) bool {
	if s.has(name) {
		return true
	}
	if !s.meant[name] {
		s.report(name, &complaint{"is missing", remedy})
	}
	return false
}

// text reads an optional field that holds a text.
func (s *section) text(name string) (string, bool) {
	n := s.fields[name]
	if n == nil {
		return "", false
	}
	return s.d.text(s.at(name), n)
}

func (d *decoder) text(path string, n *Node) (string, bool) {
	switch n.Kind {
	case StringNode:
		return n.Text, true
	case NumberNode, BoolNode:
		d.report(path, n, &complaint{"must be a text, is " + quoteNumber(n.Text), fmt.Sprintf("quote it: %q", quoteNumber(n.Text))})
	default:
		d.report(path, n, &complaint{"must be a text, is " + n.Kind.String(), "write a text"})
	}
	return "", false
}

// flag reads an optional field that is true or false.
func (s *section) flag(name string) bool {
	n := s.fields[name]
	if n == nil {
		return false
	}
	if n.Kind != BoolNode {
		is := n.Kind.String()
		if n.Text != "" {
			is = quoteShort(n.Text)
		}
		s.report(name, &complaint{"must be true or false, is " + is, "write true or false without quotes"})
		return false
	}
	return strings.EqualFold(n.Text, "true")
}

// number returns the text of a field that holds a number.
func (s *section) number(name string) (string, bool) {
	n := s.fields[name]
	if n == nil {
		return "", false
	}
	switch {
	case n.Kind == NumberNode:
		return n.Text, true
	case n.Kind == StringNode && notPlain(n.Text) == nil:
		s.report(name, &complaint{"must be a number, is the text " + quoteShort(n.Text), "write it without quotes"})
	case n.Kind == StringNode && notPlain(strings.ReplaceAll(n.Text, ",", "")) == nil:
		s.report(name, &complaint{"must be a number, is the text " + quoteShort(n.Text), "write " + strings.ReplaceAll(n.Text, ",", "") + ", without separators"})
	case n.Kind == StringNode:
		s.report(name, &complaint{"must be a number, is the text " + quoteShort(n.Text), "write digits only, such as 100"})
	default:
		s.report(name, &complaint{"must be a number, is " + n.Kind.String(), "write digits only, such as 100"})
	}
	return "", false
}

// tokens reads a number of tokens.
func (s *section) tokens(name string, fraction bool) (Tokens, bool) {
	text, ok := s.number(name)
	if !ok {
		return 0, false
	}
	t, c := parseTokens(text, fraction)
	if c != nil {
		s.report(name, c)
		return 0, false
	}
	return t, true
}

// integer reads a whole number between low and high, which may be negative.
func (s *section) integer(name string, low, high int64) (int64, bool) {
	text, ok := s.number(name)
	if !ok {
		return 0, false
	}
	n, ok := parseInteger(text)
	if !ok || n < low || n > high {
		s.report(name, &complaint{"is not a whole number from " + itoa(low) + " to " + itoa(high) + ": " + quoteNumber(text), "state a number in that range"})
		return 0, false
	}
	return n, true
}

// duration reads an optional time between low and high; zero when there is none.
func (s *section) duration(name string, low, high time.Duration) time.Duration {
	n := s.fields[name]
	if n == nil {
		return 0
	}
	if n.Kind == NumberNode {
		c := &complaint{"has no unit: " + quoteNumber(n.Text), "add a unit, such as 60s"}
		if notPlain(n.Text) == nil && strings.Trim(n.Text, "0.") != "" {
			c.remedy = "add a unit, such as " + quoteNumber(n.Text) + "s"
		} else if bad := notPlain(n.Text); bad != nil {
			c = &complaint{bad.reason, "state a time such as 60s"}
		} else {
			c = checkPeriod(0)
		}
		s.report(name, c)
		return 0
	}
	text, ok := s.text(name)
	if !ok {
		return 0
	}
	d, err := ParseDuration(text)
	if err != nil {
		c := &complaint{"is no time: " + quoteShort(text) + " " + err.Error(), "write a time such as 60s, 5m, 1h30m or 30d"}
		if strings.HasPrefix(text, "-") {
			c.reason = "must not be negative, is " + quoteShort(text)
		}
		s.report(name, c)
		return 0
	}
	if d < low || d > high {
		c := checkPeriod(d)
		if c == nil {
			c = &complaint{"must be between " + FormatDuration(low) + " and " + FormatDuration(high) + ", is " + quoteShort(text), "state a time in that range"}
		}
		s.report(name, c)
		return 0
	}
	return d
}

// choice reads an optional field that names one of the values.
func choice[T fmt.Stringer](s *section, name string, values ...T) (T, bool) {
	var none T
	text, ok := s.text(name)
	if !ok {
		return none, false
	}
	known := make([]string, len(values))
	for i, v := range values {
		known[i] = v.String()
		if text == known[i] {
			return v, true
		}
	}
	s.report(name, &complaint{"has the unknown value " + quoteShort(text), "write one of " + strings.Join(known, ", ")}, nearest(text, known))
	return none, false
}
