// Package rpc serves and calls the API of package weir.v1: the handlers of
// LimiterService and RegionService, their clients, the one table from domain
// errors to RPC codes, rate limit headers, and the HTTP server that speaks
// Connect, gRPC, gRPC-Web and JSON on one port.
//
// It knows nothing of how a check is decided. It declares the two interfaces
// that it calls, [Limiter] and [Regions], over the words of package quota.
// Everything that arrives is bounded and validated here, so that what is behind
// those interfaces sees only well-formed requests.
package rpc
