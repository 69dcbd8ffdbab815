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
// L6, conserved tokens: a grow raises no level. The one gift there is goes with the
// first version of a quota that no region has any row of: its whole capacity is
// unspent, but for the floors. Tokens that shrinks surrender are not passed on.
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
//   - Only for the end of a removed policy: a grant is under way for no longer than
//     messageLife (one minute). Until then the record stays, with a share of nothing.
//   - Only after data loss: a region's clock is at most 1/1000 slow, so that entries
//     it has forgotten are gone after window*(1+1/500)+1.1 s on this clock.
//
// # What happens when
//
//   - A region is silent: it keeps its bound for as long as that lasts (partition
//     mode hold). The others divide what it leaves. Nothing of it is given away by time.
//   - The coordinator is away: every region goes on with what it has.
//   - The ledger does not answer: reports are answered, with what was committed before.
//   - The coordinator restarts with its ledger: the split stays; regions are asked for
//     everything they hold, and what is not acknowledged is sent again.
//   - The ledger is lost or may have lost rows (5.8): nothing grows until every
//     configured region has reported all it holds to the new epoch; a bound is then
//     the maximum of row and report. If an earlier ledger's epochs were higher, a
//     higher one is begun first. Logs do not grow for one window, since a region may
//     have lost entries that nobody knows of now.
//   - A region lost its data, or a part of it (another gen): bounds stay, everything
//     is sent again without gifts, once it is in the ledger which dataset is followed
//     now, and logs are not freed for one window.
//   - A policy goes: each region keeps its share until it has reported a revision
//     without it (or a minute has passed), is then shrunk to nothing, and is
//     forgotten when it no longer has a record.
//   - A region leaves the configuration: its shares are taken back as those of a
//     removed policy are. If it never answers again, they stay bound.
//   - The period of a limit changes: bounds are converted, rounded up.
//
// The tests of this package try to break each of these statements, under random
// schedules of faults, and check that they would notice by breaking the protocol
// itself in eight ways.
package coordinator
