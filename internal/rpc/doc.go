// Package rpc serves and calls the API of package weir.v1: the handlers of
// LimiterService, RegionService, PolicyService and TokenService, their clients, the one table from domain
// errors to RPC codes, rate limit headers, and the HTTP server that speaks
// Connect, gRPC, gRPC-Web and JSON on one port.
//
// It knows nothing of how a check is decided. It declares the two interfaces
// that it calls, [Limiter] and [Regions], over the words of package quota, and
// keeps policies through the contract of package policystore.
//
// Who may call what stands in one table, and is decided before a message is
// read. A secret is hashed as soon as it arrives; nothing prints or keeps it.
//
// Everything that arrives is bounded and validated here, so that what is behind
// those interfaces sees only well-formed requests.
package rpc
