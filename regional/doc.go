// Package regional decides checks inside one region. An Engine answers checks on
// one node; an Agent, which runs on every node and is active on one, ties the
// region to the coordinator.
//
// # Who decides what
//
//	the policy index   which quotas a request is counted by (in memory, never asked over a network)
//	the Store          whether a quota admits: one atomic decision per stripe, by the store's clock,
//	                   against the share record that lies beside the bucket
//	the Engine         whether the request is admitted: all quotas, or none of them charged
//	the coordinator    how large the region's shares are
//	the Agent          nothing: it carries demand up and shares down
//
// No node holds an opinion about a share while the store answers: the script reads
// the record itself. So a node that has heard nothing for an hour, or that has just
// started, admits exactly what the region may.
//
// # One check
//
//	resolve --> group by stripe --> ask all stripes at once --> all answered? --> decide --> settle
//	                                                             no: deadline, error, full gate
//	                                                             +-> failure mode of each policy
//
// Quotas of one stripe are charged together or not at all by one script. Quotas of
// several stripes are charged independently, so when one denies, what the others
// took is given back. Between the two the tokens are missing to others: a false
// denial is possible and counted (weir_possible_false_denials_total), admitting too
// much is not. A policy that denies without being asked (limit 0, a cost that can
// never fit, a missing key) turns the whole check into a look: nothing is charged.
//
// A shadow policy is decided and reported; it denies nobody, and causes no give-back.
//
// # Deadlines
//
// A stripe is waited for until the smallest StoreDeadline of its policies (5 ms if
// they do not say), counted from the check's arrival, or until the caller goes. The
// call itself is not cut short then, because a script that has been sent may have
// charged. It goes on for Config.LateWait after the last deadline of its check, and its
// late answer is settled:
//
//	the caller was told "denied", or has gone   the charge is given back
//	the caller was let through by a fallback    the charge stands; it is the charge of that request
//
// A call is abandoned and settled under one lock, so no late charge is lost between
// the two, whichever comes first. Only a call that never answers leaves its outcome
// unknown; if it charged, the tokens return by refill.
//
// # Giving back
//
// A give-back runs detached from the check, at most three times, each bounded. It is
// repeated only when the store has certainly not run it: a refund that happened twice
// would lift the limit, while one that is lost costs at most a refill. A refund also
// makes the store forget the request id, or a repeat of a denied check would be told
// of a charge that no longer exists. An outcome that was remembered from an earlier
// attempt is never refunded: its charge belongs to that attempt.
//
// # When the store fails
//
//	closed   denied with STORE_UNAVAILABLE, which is not counted as over limit
//	open     admitted
//	local    a bucket in this node's memory decides
//
// Each such decision says so (source fallback). A local bucket holds
// share/nodes, at least one token where the share has one, so all nodes of a region
// together admit at most max(share, one token per node) at once and the share's
// refill after that. A bucket starts full, because nobody knows what its quota had
// left when the store went. Store and local buckets each keep their bound over any
// stretch of time, however often the store comes and goes, so both together admit at
// most twice what the share allows. Before a node has seen a share it uses the
// floor. Without a coordinator and for regional limits the share is the limit.
//
// Local memory is bounded (Config.LocalKeys). A bucket that denies is never dropped
// for another key, so random keys do not end a denial; when nothing may be dropped,
// further keys of a policy share one bucket. Each drop of a bucket that still counts
// something is counted.
//
// The number of calls inside the store is bounded, in all and per group of stripes.
// One more takes its failure mode at once: waiting in front of a store that is full
// of waiters helps nobody.
//
// # The agent
//
//	every node:   demand --(each quarter interval)--> region's sum in the store
//	lock holder:  state ok? --> take demand window --> report --> apply grants --+
//	                 |no            ^                                            |
//	                 v              +---------- at once, as acknowledgement -----+
//	              initialise
//
// Acknowledging is reporting the version that every stripe holds, so an acknowledgement
// that is lost is repeated by the next report. The lock only saves work: all writes
// are compared and set on (dataset, epoch, version) in the store, and two agents do no harm.
//
// Failures:
//
//	coordinator away      shares stay as they are; reports are retried with back-off and jitter
//	older leader          refused: its epoch is below the one the dataset has accepted
//	dataset lost          a new dataset id; it starts at the floor and empty-handed, unless the
//	                      coordinator confirms that this region never had another
//	some stripes lost     they start as lost ones; version zero is reported until the coordinator
//	                      has sent the shares again
//	agent dies            the lock expires and another node goes on; nothing it knew is needed,
//	                      because shares, shrink times and demand are in the store
//	region's store away   nodes keep demand by key, bounded, and hand it over later
//
// A log whose share has shrunk reports Drained false and what may still be inside
// its window, until a whole window (longer by the clock bound) has passed since the
// shrink on the last stripe. The instant is part of the share record.
package regional
