// Package lua keeps the buckets and logs of one region in its Redis Cluster. It
// holds the scripts, one file each, what they are called with, and the typed
// functions that call them. It is the only package that imports a Redis client.
//
// # Keys
//
// Every key carries the tag of one of the region's stripes, so one script decides all
// quotas of a stripe at once. With prefix rl and stripe 17:
//
//	rl:{17}@region        region record: dataset:epoch:term:lease end:caution until
//	rl:{17}@share:POLICY  share record of a global policy, see below
//	rl:{17}@tracked       the keys of the stripe that have a share of their own, and their policies
//	rl:{17}@reply:HASH    a remembered outcome
//	rl:{17}:...           buckets and logs, see quota.AppendBucketKey
//	rl:{0}@stripes        how many stripes the region has, fixed at first start
//	rl:{0}@demand         what the nodes of the region were offered
//	rl:{0}@taken          when that was last read
//	rl:{0}@agent          which node reports to the coordinator
//
// Buckets, logs and replies always have a TTL, but for those of tracked keys. Records have none, so that a Redis
// with a volatile eviction policy never evicts one.
//
// # Values
//
// A share record is the limit's capacity, the version, the share's capacity, refill
// and period, the accumulator when the record was settled, when that was, and the
// ghost then, the life of a bucket and its form (n narrow, w wide, a capital when the
// permanent part differs), the permanent capacity and refill, for a log the entries
// that may still stay from a larger share and since when, and the epoch; then, each
// behind a bar, up to eight instants at which the share grew, as the accumulator and
// the capacity before. All are integers but the ghost, which has six decimals.
//
// A bucket under a share record is its level x and the policy's accumulator A_x when
// it was last charged. With A(t) = A0 + r(t-t0) and the ghost g(t) = min(c, g0 +
// r(t-t0)), the level of a bucket nobody uses, its level is min(g(t), x + A(t) - A_x):
// exact for any number of share changes between two touches, because each change only
// settles the record. A settlement keeps the part of a milli-token that is under way,
// so a policy that is settled every second refills as well as one that never is. An
// absent bucket has the level of the ghost, so a region that is granted more capacity
// is granted room, not tokens. A bucket that leaves its capacity is marked one
// milli-token ahead, since A is a whole number and the one under way is not its own.
//
// A key whose override has more burst for its refill than the policy fills the room
// of a grown share more slowly than the ghost: at an instant j of growth it had at
// most its part of the capacity before, so now at most that and what its own refill
// gave since, for each j.
//
// Both numbers fit one 64-bit integer when they are small: nine digits of accumulator
// after a guard digit, the level before it. Redis then stores no payload at all.
// Larger ones, and overridden keys, are "x:A". A mark more than half the range behind
// is one ahead: the clock stepped back. Half the wide range is 2e15 milli-tokens, so
// under limits above 2^38 tokens a bucket may read too low, never too high, when it
// is touched again after it had long been full.
//
// A tracked key has a share of its own. Its value is T, a share record, then, once an
// attempt has told, ";" and how its quota follows from the policy's (limit, policy's
// limit, refill rate over the policy's, by what factor its bucket lives longer), then "#"
// and what any key holds, or nothing. So a script sees the record in the MGET that it
// does anyway. Its first grant copies the policy's record, settled, so that (x, A_x) goes
// on exactly, and widens a narrow mark, since a tracked value has no TTL; a gift raises
// x and the ghost; what a shrink cuts off stands where a log has its hold. A drop stores
// the level under the policy's accumulator, a milli-token ahead, or deletes the bucket
// when it is as good as one that nobody uses. What is not known is taken for the worst:
// before an attempt has told whether a key is overridden, a gift raises no stored level,
// nothing stored counts as surrendered, and a log drains by W4. One thing is not exact: a
// key whose override has more burst for its refill than the policy, which nobody used
// while it was tracked nor for a bucket's life after, reads as if it had filled at the
// policy's pace.
//
// A bucket with regional numbers is "level@microseconds": its refill in lowest terms
// is a whole number of milli-tokens in a whole number of microseconds, and the instant
// moves on by whole such steps, so the stored level may be below zero for less than
// one. It is the exact bucket, rounded down, as long as the two numbers of the
// fraction multiply to less than 2^53, and within a milli-token of it beyond.
//
// A log is "L" and seven bytes per entry, the instants in order. A value in any other
// form was left by another algorithm, or by nobody of ours: its level counts if it can
// be read, else nothing is left, and refill starts anew.
//
// Refills are divided, and windows multiplied, by 1.0005 under a share record: clocks
// of two regions may run at slightly different rates, and the sum over the regions
// must hold in true time.
//
// A clock that steps back freezes what counts by it. A step that would freeze a bucket
// for longer than it takes to fill, a log for longer than its window, or a record for
// longer than two seconds is not waited for: the value goes on from the new time,
// with no token more.
//
// # The lease
//
// The region record of a stripe says until when its lease lasts, by the stripe's own
// clock, which was read before the report was sent that was answered with the lease.
// Until then a share record counts whole, afterwards with its permanent part: it accrues
// at that rate from the end of the lease on and is clamped to that capacity. A form in
// capitals says that the two differ.
//
// A lease that is extended in time is one write a stripe. One that was over is extended
// after the lapse was settled in the share records of the policies that the agent names,
// so that the time without lease is not counted as time under it. What is not settled
// there, as the records of tracked keys are not, accrues for that time what its share
// gives. That is no more than the ledger counts it for: a share that others were given
// meanwhile was reclaimed, its region gets no lease before it has applied what took the
// share's place, and to apply that is to settle the record, a key's own as well.
//
// # What a script cannot do
//
// Nothing here retries a call whose fate is unknown: a second charge would be as
// wrong as a lost one. A call that Redis has certainly not run (NOSCRIPT, MOVED, ASK,
// TRYAGAIN, CLUSTERDOWN, LOADING, READONLY) is sent again within its deadline.
//
// The entries of one attempt must be different keys, each policy at most once.
package lua
