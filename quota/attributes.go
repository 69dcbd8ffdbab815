package quota

import (
	"fmt"
	"strings"
)

// Attribute is one named string of a request.
type Attribute struct {
	Name, Value string
}

// Attributes describe a request: sorted by name, each name once, no value
// empty. An attribute with an empty value is the same as one that is absent, so
// that a caller who sends an empty header is not taken for somebody.
// Build them with an AttributeBuilder.
type Attributes []Attribute

// Get returns the value of an attribute, or "" when the request lacks it.
func (a Attributes) Get(name string) string {
	for i := range a {
		if a[i].Name == name {
			return a[i].Value
		}
	}
	return ""
}

// AttributeBuilder makes Attributes without allocating once it has grown. The
// zero value is ready. It is for one goroutine at a time.
type AttributeBuilder struct {
	list Attributes
	err  error
}

// Reset forgets the attributes, which must no longer be in use.
func (b *AttributeBuilder) Reset() {
	clear(b.list)
	b.list, b.err = b.list[:0], nil
}

// Add adds one attribute. The strings are kept until the next Reset.
func (b *AttributeBuilder) Add(name, value string) {
	at, err := len(b.list), CheckAttribute(name, value)
	for at > 0 && b.list[at-1].Name > name {
		at--
	}
	switch {
	case err != nil:
	case at > 0 && b.list[at-1].Name == name:
		err = fmt.Errorf("%w: attributes[%s]: is given twice; keep one of them", ErrInvalid, quoteShort(name))
	case value == "":
	case len(b.list) == MaxAttributes:
		err = fmt.Errorf("%w: attributes: more than %d; send only those that policies name", ErrInvalid, MaxAttributes)
	default:
		b.list = append(b.list, Attribute{})
		copy(b.list[at+1:], b.list[at:])
		b.list[at] = Attribute{Name: name, Value: value}
	}
	if b.err == nil {
		b.err = err
	}
}

// AddMap adds all attributes of m.
func (b *AttributeBuilder) AddMap(m map[string]string) {
	for name, value := range m {
		b.Add(name, value)
	}
}

// Attributes returns what was added since the last Reset, and is valid until
// the next. The error is an ErrInvalid that names the first attribute that
// broke a bound.
func (b *AttributeBuilder) Attributes() (Attributes, error) {
	if b.err != nil {
		return nil, b.err
	}
	return b.list, nil
}

// CheckAttribute returns an ErrInvalid that names the attribute when its name
// or its value breaks a bound. The value is not repeated: it may be a secret.
func CheckAttribute(name, value string) error {
	if !ValidAttributeName(name) {
		return fmt.Errorf("%w: attributes[%s]: %s; %s", ErrInvalid, quoteShort(name), "is no attribute name", badAttributeName(name).remedy)
	}
	if len(value) > MaxAttributeValue {
		return fmt.Errorf("%w: attributes[%s]: the value has %d bytes; send at most %d", ErrInvalid, quoteShort(name), len(value), MaxAttributeValue)
	}
	return nil
}

// firstMissing returns the first attribute of a key that the request lacks, or "".
func (a Attributes) firstMissing(key []string) string {
	for _, name := range key {
		if a.Get(name) == "" {
			return name
		}
	}
	return ""
}

// holds reports whether the request satisfies a condition.
func (a Attributes) holds(c Condition) bool {
	value := a.Get(c.Attribute)
	if text, prefix := c.pattern(); prefix {
		return value != "" && strings.HasPrefix(value, text)
	}
	return value == c.Pattern && value != ""
}
