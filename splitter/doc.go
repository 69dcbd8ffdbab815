// Package splitter divides a global limit between regions. It is pure: limit,
// demand and the previous split in, shares out; no clock, no I/O.
//
// Demand is met first, smallest wishes first where it cannot all be met
// (weighted max-min), then headroom for demand that has been seen lately, then
// the rest is spread so that surprise traffic is admitted anywhere. Small
// differences leave a split as it is.
//
// What every result holds, whatever the inputs:
//
//   - the components of all shares sum exactly to those of the limit;
//   - every component is at least the region's floor;
//   - for token buckets, capacity <= refill*C/R + one token, and a region with
//     capacity has refill: a bucket refills no slower than the global one, but
//     for one token;
//   - capacities are whole tokens, but for the fraction of a token that a
//     fractional limit leaves, which one region gets;
//   - the order of the regions in the input changes nothing (ties go by name).
//
// A region that is silent and whose bound breaks the third rule is the one
// exception to meeting its bound: its share obeys the rules, and the ledger
// goes on counting the bound.
package splitter
