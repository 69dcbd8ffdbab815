// Package coordinator divides global limits between regions, so that what all
// regions may use never exceeds the limit, at any instant, whatever is lost,
// delayed, repeated or restarted.
//
// [Machine] is the protocol: a pure state machine that takes in time, reports,
// policies and the results of ledger commits, and puts out ledger rows and
// grants. [Coordinator] drives it with a clock, a [Ledger] and a loop. How much
// each region should have is the business of package splitter; this package says
// when it may have it.
//
// # One row
//
// For each quota and region the ledger has a [Row]. Its bound U = max(Acked,
// MaxSent), component by component, is the most the region can be using or be
// entitled to.
//
//	           issue (L2)              commit (L1)               ack of Version (L3)
//	settled ---------------> issued ---------------> sent, again ------------------> settled
//	U = Acked                U rises to              and again     Acked := Sent,
//	                         max(U, Sent)                          or Hold while a log drains
//	                            ^                         |
//	                            +-------------------------+
//	                             a newer version (L5): MaxSent
//	                             keeps the maximum
//
// L1, persist before send: a grant leaves only when the row that covers it is
// committed, under the epoch that the ledger began for this coordinator.
//
// L2, shrink before grow: shrinks are issued at once, as they raise no bound.
// Grows share what the limit has left when all bounds are taken off, and go to
// regions only that have acknowledged their last version.
//
// L3: a bound falls by one event, a report of this epoch that names the latest
// version with the very share that was sent. A log above its share keeps what is
// still inside the window: the bound follows the reported Hold down, and never up.
// Without a number it waits for Drained.
//
// L4 is the region's: it applies a grant only of its dataset's gen, of no epoch
// older than it has seen, and of a newer (epoch, version) than it holds.
//
// L5: a version may replace one that is not acknowledged; MaxSent keeps the
// maximum of all that may still arrive.
//
// L6, conserved tokens: a grow raises no level, except by the gift it brings. The
// first version of a quota that no region has any row of brings its whole capacity but
// for the floors, since that is unspent. Later gifts are for tracked keys, whose level
// a region knows: what a shrink cut off is parked here when it is acknowledged, and
// goes with grows of the same key. What is parked never exceeds the capacity that is
// allocated to nobody, also when the limit falls, and a gift never the capacity that
// its grow adds; so levels, gifts under way and parked tokens sum to at most the
// capacity. A gift is in one version only, and none is repeated to another dataset.
//
// F2, permanent parts: each version carries, beside the share, the part of it that the
// region may go on using when its lease is over. Machine.permanent alone chooses it:
// the whole share in partition mode hold, the floor in strict. P = max(PermAcked,
// PermMax) is to the permanent parts what U is to the shares, and at most U.
//
// Floors are inside U from the moment a policy is known, granted or not, because a
// region may use its floor before it was told anything. A larger floor of an earlier
// limit counts until the region has acknowledged a share (F3).
//
// # Why the sum holds
//
// In region i the share in use is at most U_i. It holds at the start. A share in
// use changes only by a grant that is applied; its commit put it under MaxSent
// before it could arrive, and by L4 nothing older follows. U falls only when the
// region is known to hold the latest version, below which it cannot return. So
// crashes, duplicates, reordering and a leader that does not know it was replaced
// change nothing: none of them makes a grant that is not in the ledger.
//
// The sum of all U is raised only up to the limit (L2). Hence the shares in use sum
// to at most the limit, with no assumption about clocks. While a lowered limit is
// not effective, that is while the sum of U is above it, nothing is raised, and the
// earlier limit holds. Not even within a bound of its own: a bound may count a floor
// that is not in use, and that others still use.
//
// For logs, entries count and not shares: a region above its share admits nothing,
// so its count only falls, and U does not fall under it before the count does.
//
// # Leases
//
// A region has one lease for all policies of partition mode strict. An answer to a
// report extends it to TTL after the report was sent, by the region's clock. When it is
// over the region uses min(share, permanent part). There is none, and none is waited
// for, as long as no policy is strict and no region holds a share of one that was.
//
//	         silent for TTL*(1+rho)/(1-rho) + 0.5 s          w*(1+rho)^2/(1-rho)^2 + 1.1 s
//	         Reclaimed, new version share = perm = P         later, of a log (a bucket at once)
//	leased ------------------------------------> reclaimed ----------------------------> U := P
//	   ^                                             |                                     |
//	   +---- leases again when every reclaimed row --+-------------------------------------+
//	         of the region is acknowledged
//
// The rules, each of which a test can break:
//
//   - The silence is counted from the last report of the region that this machine
//     took in, or from the machine's start, on its own clock. A lease is a part of an
//     answer only if no row of the region is Reclaimed when the answer is made.
//   - Reclaimed is durable and is set before or with U := P. An acknowledgement of the
//     row's last version ends it, nothing else does.
//   - The version that reclaims has share = perm = min(P, share sent last).
//   - U, and P, fall to what an acknowledgement or a drain leaves, which is never below
//     the permanent part of the version that was acknowledged.
//   - A row that was Reclaimed under an earlier leader waits for a lease and a window
//     again before U := P.
//   - In hold P = U at any time, so that time frees nothing.
//   - While a lossy ledger is recovering nobody gets a lease. If then more is held than
//     the limit, shares may have been reclaimed and forgotten: all that depends on a
//     lease is Reclaimed, with the wait counted from the machine's start.
//
// Why that holds: let t be the true time at which the coordinator took in the last
// report that it may have answered with a lease. It was sent before t, so the lease is
// over at true time t + TTL/(1-rho), however late the answer is. The coordinator's clock
// shows TTL*(1+rho)/(1-rho) at that time at the earliest, and the margin later the
// share is reclaimed. A leader before this one lost its right to answer before this one
// began (see elector), so "began" is later than its last report. From then on the
// region uses at most the permanent part of a version it holds or may still receive, and
// all of these are in P. Entries of a log that the share admitted are older than
// w*(1+rho), which the region's clock has shown, w*(1+rho)/(1-rho) later. No report that
// comes later is answered with a lease until the region holds the version that the
// reclaim issued, or a later one, whose share is within P: so U = P stays true.
//
// A region that has lost its data has no lease, and its record is the last version
// issued, the reclaimed one, since no other is ever sent again.
//
// What a coordinator outage costs: every region falls to its floors for policies of
// mode strict, TTL after its last answered report, and has its shares back with the
// first answer, as nothing was reclaimed meanwhile.
//
// Quorum leases, where regions extend each other's lease, will need terms: a number per
// region that rises with each reclaim, that leases name and that peers promise not to go
// below. Here the coordinator alone extends leases, and a row that is Reclaimed says
// the same as a term below the lowest one allowed. The region record has a place for it.
//
// # Tracked keys
//
// The default split of a policy holds for all its keys. A key that comes near its limit
// in a region is given rows of its own (see flag), so that its share can follow its own
// demand; all others keep the default. In a region the key follows the default share
// until it has pinned its own record, and may again once it was told to drop it. So:
//
//   - While a region is not known to have pinned a key, or may have dropped it, the
//     key's bound there is that of the default share as well, and the default share of
//     that region does not grow (loose). It may shrink.
//   - A dataset that has lost a key's record is told the default share only after it
//     holds the key's again (withheld): the key's share may be less, and the
//     difference with others.
//   - Going back, a key is given the default share in every region first. A minute
//     after a region has acknowledged that, when no earlier version can be under way,
//     it is told to drop the record.
//
// Hence the sum of a key's bounds is at most the limit throughout, by the argument above.
// Policies of partition mode strict have no tracked keys; when one becomes strict, its
// keys go back, and until then keep shares that no lease limits.
//
// # Borrowing
//
// A region that denies, or is about to, says so at once and is not made to wait for the
// next rebalance: the targets of that quota are computed anew, at most each 200 ms
// (see borrow). Only targets change by that, so nothing above depends on it. Weights,
// which say who yields when demand exceeds a limit, follow what each region was
// admitted over a day, and grow by at most a quarter in an hour.
//
// # Who is authoritative
//
// The ledger, for what regions may be using; nothing that is only in memory has to
// be right. Estimates of demand, targets, the times of reports and the outboxes
// may all be lost: targets are then what was sent, until demand is known again.
// In the region its dataset is authoritative for what it applied.
//
// # What is assumed
//
//   - A region is one actor: it acknowledges when every stripe has applied a grant.
//   - Commits that returned without error are durable, unless the ledger says in its
//     snapshot that it may have lost some.
//   - Epochs of one deployment are never used twice.
//   - Only for strict: the rates of all clocks are within rho = 1/2000 of true time, and
//     that of a region's store does not step back; coordinators that follow one another
//     have the same TTL, and only a Candidate, or a coordinator that never has a
//     successor, answers reports.
//   - Only for the end of a removed policy: a grant is under way for no longer than
//     messageLife (one minute). Until then the record stays, with a share of nothing.
//   - Only after data loss: a region's clock is at most 1/1000 slow, so that entries
//     it has forgotten are gone after window*(1+1/500)+1.1 s on this clock.
//
// # What happens when
//
//   - A region is silent: in partition mode hold it keeps its bound for as long as
//     that lasts. The others divide what it leaves. Nothing of it is given away by time.
//     In strict the end of its lease frees all but the permanent part.
//   - The coordinator is away: every region goes on with what it has, and in strict with
//     the permanent part of it when its lease is over.
//   - The ledger does not answer: reports are answered, with what was committed before.
//   - The coordinator restarts with its ledger: the split stays; regions are asked for
//     everything they hold, and what is not acknowledged is sent again.
//   - The ledger is lost or may have lost rows (5.8): nothing grows until every
//     configured region has reported all it holds to the new epoch; a bound is then
//     the maximum of row and report. If an earlier ledger's epochs were higher, a
//     higher one is begun first. Logs do not grow for one window, since a region may
//     have lost entries that nobody knows of now. What a region reports without a
//     version, because it has lost a part of its dataset too, is taken back where
//     no policy says what it is.
//   - A region lost its data, or a part of it (another gen): bounds stay, everything
//     is sent again without gifts, once it is in the ledger which dataset is followed
//     now, and logs are not freed for one window. The first dataset that a ledger
//     meets counts as such a one, unless it was told to begin as the region's first.
//   - A policy goes: each region keeps its share until it has reported a revision
//     without it (or a minute has passed), is then shrunk to nothing, and is
//     forgotten when it no longer has a record.
//   - A region leaves the configuration: its shares are taken back as those of a
//     removed policy are. If it never answers again, they stay bound.
//   - The period of a limit changes: bounds are converted, rounded up.
//
// The tests in faulttest try to break each of these statements, under random
// schedules of faults, and check that they would notice by breaking the protocol
// itself in many ways.
package coordinator
