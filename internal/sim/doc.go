// Package sim replays demand through the split of a global limit in virtual time
// and compares what is admitted with an ideal central bucket.
//
// # What is real
//
// For the algorithm "weir" the splitter, the coordinator's state machine, its
// ledger (in memory) and the stores (quota.Model, which the Lua scripts are held
// against) are the code that a deployment runs. The region's agent and the network
// are stand-ins that follow the same rules: a report each second and at once to
// acknowledge, one exchange at a time, the coordinator's NextReport honoured, a
// deadline of five seconds and a growing pause when nobody answers, and an urgent
// report, at most every half second, when the region is about to deny.
//
// The other algorithms are textbook splits: shares computed from the demand of the
// last interval and pushed without acknowledgement to regions that put them in
// force on arrival.
//
// # How time passes
//
// Requests arrive in ticks of 20 ms: a Poisson number per region and tick, decided
// together at the end of the tick as one atomic attempt for as many as the store
// has room for, which is what the same number of single attempts at that instant
// would get. Messages and their effects have instants of their own between ticks.
// All algorithms and the ideal bucket are offered the same arrivals. Everything
// follows from the seed; there is no goroutine and no clock.
//
// A message takes 25 to 150 ms. A lost one is sent again by its connection after
// 300 ms, then 600 ms and so on, for every algorithm alike.
//
// Before a scenario begins a day passes in steps of a minute at its first demand,
// without requests, for what a coordinator learns slowly, and then some intervals
// with requests. Neither counts in the results, but sums of shares and the envelope
// are checked from the first request on.
package sim
