// Package ledgertest is the contract of coordinator.Ledger as tests. Every ledger runs it.
package ledgertest
