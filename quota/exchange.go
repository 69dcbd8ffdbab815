package quota

import "time"

// Epoch is the leader's fencing number: a higher one has seen everything a lower one did.
type Epoch int64

// ID names one quota that is split: a policy with one key, or with Key empty the
// default split of all keys that have none of their own.
type ID struct {
	Policy string
	Key    string
}

// Grant tells a region its share of one quota (the SHARE message). A region
// applies it only when (epoch, Version) is newer than what it holds.
type Grant struct {
	ID      ID
	Version int64
	Share   Share
	// Permanent is the part that stays usable when the region's lease is over.
	// In Hold mode it equals Share.
	Permanent Share
	// Gift are tokens that the grant brings along; a grow alone never raises a
	// level. The first grant of a new policy brings Share.Capacity less the floor's.
	Gift Tokens
	// Limit is the global limit that Share is a part of, Floor the region's floor of it.
	Algorithm Algorithm
	Limit     Limit
	Floor     Share
	// Drop removes the record: the policy is gone.
	Drop bool
}

// Report is what a region tells the coordinator each second (REPORT and ACK in one).
type Report struct {
	Region Region
	// Gen is the random id of the region's dataset; a new one means the data was lost.
	Gen string
	// Epoch is the newest leader epoch the region has accepted.
	Epoch Epoch
	// SentAt is the region's clock in microseconds.
	SentAt int64
	// Revision is the policy revision in force in the region.
	Revision int64
	// Full is true when Quotas lists every share the region holds.
	Full   bool
	Quotas []QuotaReport
}

// QuotaReport is a region's state and demand of one quota.
type QuotaReport struct {
	ID ID
	// Version and Share are what is applied on every stripe; acknowledging a
	// grant is reporting its version.
	Version int64
	Share   Share
	// Permanent is the permanent part of Share. Where nothing depends on a lease it is
	// all of it; zero is nothing.
	Permanent Share
	// Period is the period that Share.Refill counts by, as in the limit it was granted under.
	Period time.Duration
	// Demand is offered load (admitted plus denied) of the busiest key since
	// the last report, in tokens per second; Total that of all keys.
	Demand float64
	Total  float64
	// Admitted is the admitted part of Total.
	Admitted float64
	// Drained is true when everything admitted under a larger share has left
	// its window; always true for token buckets. Until then Hold is the number
	// of entries that may still be inside, in tokens.
	Drained bool
	Hold    Tokens
	// Surrendered is what the last shrink cut off a stored level.
	Surrendered Tokens
	// Urgent asks for more before the next rebalance.
	Urgent bool
}

// Lease lets a region go on using its shares: until TTL after it sent the report that
// is answered, by its own clock. Without one it uses their permanent parts.
//
// There is one lease for all quotas of a region.
type Lease struct {
	// SentAt echoes the report, so that an answer which is late, or belongs to
	// another report, extends nothing beyond that.
	SentAt int64
	// TTL is zero when the answer extends nothing.
	TTL time.Duration
}

// Instructions answer a report.
type Instructions struct {
	// Epoch is the leader's. A region refuses anything older than it has seen.
	Epoch Epoch
	// Gen echoes the report: instructions for another dataset are refused.
	Gen string
	// Fresh tells a region with a new dataset that it never had another, so
	// that nothing can have been spent before.
	Fresh bool
	// Undecided asks a region without any data to wait with its first dataset:
	// whether it would be fresh is known only when the other regions have reported.
	Undecided bool
	// Full asks for a report of every share the region holds.
	Full   bool
	Grants []Grant
	// Lease extends the region's lease.
	Lease Lease
	// NextReport is when the coordinator would like to hear again; zero leaves it to the region.
	NextReport time.Duration
}
