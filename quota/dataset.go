package quota

import "time"

// DatasetState is what the region records of all stripes say together.
type DatasetState struct {
	// Gen is the random id of the dataset, empty when no stripe holds a record
	// or when the stripes disagree.
	Gen string
	// Epoch is the newest leader epoch that every stripe has accepted.
	Epoch Epoch
	// Complete is true when every stripe holds a region record, Empty when none does.
	Complete bool
	Empty    bool
	// Now is the store's clock in microseconds since the Unix epoch.
	Now int64
}

// DemandKind says what a Demand counts.
type DemandKind uint8

const (
	// DemandShared is that of a whole policy, or of one of its busiest keys that follow
	// its default split.
	DemandShared DemandKind = iota
	// DemandFlagged is that of a key whose level fell under half of what its share
	// holds, or that was denied: it wants a split of its own.
	DemandFlagged
	// DemandTracked is that of a key that has one.
	DemandTracked
	// DemandShort is the part of a flagged or tracked key's demand that met a level so
	// low that the key must have more before the next rebalance. It is counted in the
	// other kinds as well.
	DemandShort
)

// Demand is offered load of one policy or of one of its keys, summed over some
// span of time.
type Demand struct {
	Policy string
	// Key is the store key of one of the policy's busiest quotas; empty for the
	// total over all of them. Of a flagged or tracked key it is ID.Key.
	Key  string
	Kind DemandKind
	// Offered is what was asked for, Admitted the part that was let through.
	Offered  Tokens
	Admitted Tokens
}

// DemandWindow is what the nodes of a region have added up since it was last taken.
type DemandWindow struct {
	// Elapsed is the time since the last take by the store's clock; zero when
	// there was none, so that no rate can be told.
	Elapsed time.Duration
	Demands []Demand
}
