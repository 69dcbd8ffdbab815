package quota

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// The bounds of names and of the attributes that a request or a policy may hold.
const (
	MaxPolicyID       = 64
	MaxAttributes     = 32
	MaxAttributeName  = 64
	MaxAttributeValue = 1024
	MaxKeyParts       = 16
	MaxRegionName     = 64
)

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isNameByte reports whether c may stand in any name: [A-Za-z0-9_.-].
func isNameByte(c byte) bool {
	return isLetter(c) || isDigit(c) || c == '_' || c == '.' || c == '-'
}

// ValidPolicyID reports whether id is of the form [A-Za-z0-9_.:/-]{1,64}.
func ValidPolicyID(id string) bool {
	if id == "" || len(id) > MaxPolicyID {
		return false
	}
	for i := range len(id) {
		if c := id[i]; !isNameByte(c) && c != ':' && c != '/' {
			return false
		}
	}
	return true
}

// ValidAttributeName reports whether name is of the form [A-Za-z][A-Za-z0-9_.-]{0,63}.
func ValidAttributeName(name string) bool {
	if name == "" || len(name) > MaxAttributeName || !isLetter(name[0]) {
		return false
	}
	for i := 1; i < len(name); i++ {
		if !isNameByte(name[i]) {
			return false
		}
	}
	return true
}

// ValidRegion reports whether name is of the form [A-Za-z0-9_.-]{1,64}.
func ValidRegion(name Region) bool {
	if name == "" || len(name) > MaxRegionName {
		return false
	}
	for i := range len(name) {
		if !isNameByte(name[i]) {
			return false
		}
	}
	return true
}

// nearest returns the known name closest to text by edit distance, or "" when
// none is close enough to be a slip. Of equally close ones the first wins.
func nearest(text string, known []string) string {
	if len(text) > 2*MaxAttributeName {
		return ""
	}
	lower := strings.ToLower(text)
	best, bestDistance := "", max(2, len(text)/3)+1
	for _, name := range known {
		if d := editDistance(lower, strings.ToLower(name)); d < bestDistance && d < len(name) {
			best, bestDistance = name, d
		}
	}
	return best
}

// editDistance counts the insertions, deletions, replacements and swaps of
// neighbours that lead from a to b.
func editDistance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(replace, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// quoteShort quotes text for a message, cut to a length that keeps the message readable.
func quoteShort(text string) string {
	const longest = 64
	if len(text) <= longest {
		return strconv.Quote(text)
	}
	cut := longest
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strconv.Quote(text[:cut] + "...")
}
