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
//	rl:{17}@reply:HASH    a remembered outcome
//	rl:{17}:...           buckets and logs, see quota.AppendBucketKey
//	rl:{0}@stripes        how many stripes the region has, fixed at first start
//	rl:{0}@demand         what the nodes of the region were offered
//	rl:{0}@taken          when that was last read
//	rl:{0}@agent          which node reports to the coordinator
//
// Buckets, logs and replies always have a TTL. Records have none, so that a Redis
// with a volatile eviction policy never evicts one.
//
// # Values
//
// A share record is fifteen integers: the limit's capacity, the version, the share's
// capacity, refill and period, the permanent capacity and refill, the accumulator
// and the ghost when the record was settled and when that was, the life of a bucket,
// the modulus of its mark, for a log the entries that may still stay from a larger
// share and since when, and the epoch.
//
// A bucket under a share record is its level x and the policy's accumulator A_x when
// it was last charged. With A(t) = A0 + r(t-t0) and the ghost g(t) = min(c, g0 +
// r(t-t0)), the level of a bucket nobody uses, its level is min(g(t), x + A(t) - A_x):
// exact for any number of share changes between two touches, because each change only
// settles the record. An absent bucket has the level of the ghost, so a region that
// is granted more capacity is granted room, not tokens. Both numbers fit one 64-bit
// integer when they are small: nine digits of accumulator after a guard digit, the
// level before it. Redis then stores no payload at all. Larger ones are "x:A".
//
// A bucket with regional numbers is "level:seconds:microseconds". A log is "L" and six
// bytes per entry.
//
// Refills are divided, and windows multiplied, by 1.0005 under a share record: clocks
// of two regions may run at slightly different rates, and the sum over the regions
// must hold in true time.
//
// # What a script cannot do
//
// Nothing here retries a call whose fate is unknown: a second charge would be as
// wrong as a lost one. A call that Redis has certainly not run (NOSCRIPT, MOVED, ASK,
// TRYAGAIN, CLUSTERDOWN, LOADING) is sent again within its deadline.
package lua
