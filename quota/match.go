package quota

import (
	"cmp"
	"strings"
)

// Match is one policy that applies to a request, ready to be decided.
type Match struct {
	Policy *Policy
	// Limit are the numbers in force for the quota, after any override; zero when Unlimited.
	Limit Limit
	// Unlimited is true when the policy or the override says so: no store is asked.
	Unlimited bool
	// Override is the override in force, or nil.
	Override *Override
	// Missing is the first attribute of the key that the request lacks, or "".
	// What follows is for Policy.MissingKey to say; with MissingShared the
	// absent parts count as empty.
	Missing string

	rank int32
}

// Compare orders policies by precedence, the most specific first:
//
//  1. the one with more exact conditions,
//  2. then with more prefix conditions,
//  3. then with the longer prefixes, summed,
//  4. then with more "*" conditions,
//  5. then with the smaller id, byte by byte.
//
// So of two policies that differ in one condition, exact comes before prefix,
// the longer prefix before the shorter, prefix before "*", and "*" before none.
// No two policies of a document are equal, and nothing depends on the order in
// which they were loaded.
func Compare(a, b *Policy) int {
	x, y := specificityOf(a), specificityOf(b)
	return cmp.Or(
		cmp.Compare(y.exact, x.exact),
		cmp.Compare(y.prefix, x.prefix),
		cmp.Compare(y.length, x.length),
		cmp.Compare(y.anyValue, x.anyValue),
		strings.Compare(a.ID, b.ID),
	)
}

type specificity struct{ exact, prefix, length, anyValue int }

func specificityOf(p *Policy) specificity {
	var s specificity
	for _, c := range p.Match {
		switch text, prefix := c.pattern(); {
		case !prefix:
			s.exact++
		case text != "":
			s.prefix++
			s.length += len(text)
		default:
			s.anyValue++
		}
	}
	return s
}
