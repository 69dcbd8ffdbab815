package lua

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by SHA-1; nothing is secured by it.
	_ "embed"
	"encoding/hex"
)

// What is in the files is what Redis runs.
var (
	//go:embed acquire.lua
	acquireSource string
	//go:embed refund.lua
	refundSource string
	//go:embed apply.lua
	applySource string
	//go:embed region.lua
	regionSource string
	//go:embed tracked.lua
	trackedSource string
	//go:embed demand_add.lua
	demandAddSource string
	//go:embed demand_take.lua
	demandTakeSource string
	//go:embed agent.lua
	agentSource string
	//go:embed lease.lua
	leaseSource string
	//go:embed clock.lua
	clockSource string
)

// script is a script's text and the name that Redis gives it.
type script struct{ source, sha string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // see the import
	return script{source: source, sha: hex.EncodeToString(sum[:])}
}

// scripts are what a store loads into every primary.
type scripts struct {
	acquire, refund, apply, region, tracked, demandAdd, demandTake, agent, lease, clock script
}

func newScripts(rewrite func(string) string) scripts {
	s := func(source string) script { return newScript(rewrite(source)) }
	return scripts{
		acquire: s(acquireSource), refund: s(refundSource), apply: s(applySource), region: s(regionSource),
		tracked:   s(trackedSource),
		demandAdd: s(demandAddSource), demandTake: s(demandTakeSource), agent: s(agentSource),
		lease: s(leaseSource), clock: s(clockSource),
	}
}

func (s scripts) all() []script {
	return []script{s.acquire, s.refund, s.apply, s.region, s.tracked, s.demandAdd, s.demandTake, s.agent, s.lease, s.clock}
}
