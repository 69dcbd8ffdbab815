// Package chaos holds the end-to-end fault runs: real processes, real Redis Clusters, a
// real Postgres, and a network between them that fails.
//
// Two coordinators share one database, three regions have one Redis Cluster each, and
// every connection between them goes through a proxy (toxiproxy, in the test's own
// process) that can delay, drop and cut. Callers in all regions spend more than the
// limits allow, with a mix that keeps moving, so that shares move all the time. Then
// things break: leaders are killed in the middle of a rebalance, are stopped until
// another leads and then go on, lose the database; regions are cut off, one way and
// both, are stopped and continued, lose their Redis.
//
// What is judged is what callers can see. Each admission is an interval of one
// monotonic clock, from the sending of the call to its answer; the decision lies
// somewhere inside. The envelope is broken for certain when more admissions lie wholly
// inside an interval [a, b] than the limit allows for that time, and the checkers of
// this package find the worst of all such intervals exactly. They never accuse a
// correct run, whatever calls were slow. How much they overlook is bounded too: an
// excess of E tokens is seen if it is more than what the limit refills in the time of
// two calls. The tests of the checkers compare them with a search of all intervals, and
// one run gives every region the whole limit and must be found out.
//
// `go test ./chaos` runs every fault once or twice, `make chaos` twenty times.
package chaos
