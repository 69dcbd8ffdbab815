package lua

import (
	_ "embed"

	"github.com/redis/go-redis/v9"
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
	//go:embed demand_add.lua
	demandAddSource string
	//go:embed demand_take.lua
	demandTakeSource string
	//go:embed agent.lua
	agentSource string
)

// scripts are what a store loads into every primary.
type scripts struct {
	acquire, refund, apply, region, demandAdd, demandTake, agent *redis.Script
}

func newScripts(rewrite func(string) string) scripts {
	s := func(source string) *redis.Script { return redis.NewScript(rewrite(source)) }
	return scripts{
		acquire: s(acquireSource), refund: s(refundSource), apply: s(applySource), region: s(regionSource),
		demandAdd: s(demandAddSource), demandTake: s(demandTakeSource), agent: s(agentSource),
	}
}

func (s scripts) all() []*redis.Script {
	return []*redis.Script{s.acquire, s.refund, s.apply, s.region, s.demandAdd, s.demandTake, s.agent}
}
