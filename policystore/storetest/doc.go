// Package storetest is the one suite that every policystore.Store passes.
package storetest
