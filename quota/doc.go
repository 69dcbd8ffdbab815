// Package quota is the domain of Weir: policies, keys, limits, shares and
// decisions, and the pure models of the algorithms that enforce them.
//
// It imports the standard library only, so that every other package can speak
// its words: a policy is a rule, a quota is one counted thing (a policy with one
// concrete key), a limit is the policy's global numbers, a share is the part of
// a limit that one region may use now.
package quota
