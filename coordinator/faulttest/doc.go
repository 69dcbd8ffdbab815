// Package faulttest tries to break the promise of coordinator: it lets its Machine and
// a memory ledger divide limits between regions that decide with quota.Model, in
// virtual time and under random schedules of faults, and checks every admission
// against what one bucket, or one window, of the whole limit would admit.
//
// The same schedules run against mutants, each of which breaks one rule of the
// protocol, to show that they would notice. The package has tests only.
package faulttest
