package lua_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/lua"
	"github.com/weirhq/weir/quota"
)

// wide is a limit that a benchmark does not reach.
var wide = limit(400_000, 60, time.Minute)

// shapes are the attempts that are measured: what a check asks for.
func shapes(s *lua.Store) map[string]func(stripe, key int) quota.Attempt {
	name := func(kind string, key int) string { return fmt.Sprintf("api-free:k:%s%08d", kind, key) }
	return map[string]func(stripe, key int) quota.Attempt{
		"regional": func(stripe, key int) quota.Attempt { return one(bucketEntry(s, stripe, name("r", key), wide)) },
		"global":   func(stripe, key int) quota.Attempt { return one(globalEntry(s, stripe, name("g", key), "p", wide)) },
		"three": func(stripe, key int) quota.Attempt {
			return one(bucketEntry(s, stripe, name("r", key), wide), globalEntry(s, stripe, name("g", key), "p", wide),
				logEntry(s, stripe, name("l", key), 10, time.Minute))
		},
	}
}

var shapeNames = []string{"regional", "global", "three"}

// BenchmarkAcquire is a whole call: arguments, queue, network, script, reply.
func BenchmarkAcquire(b *testing.B) {
	s := openStore(b, testenv.RedisCluster(b).Addrs)
	initialise(b, s)
	const keys = 10_000
	for _, shape := range shapeNames {
		attempts := make([]quota.Attempt, keys)
		for i := range attempts {
			attempts[i] = shapes(s)[shape](i%8, i)
		}
		b.Run(shape+"/one", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := s.Acquire(b.Context(), attempts[i%keys]); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(shape+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32)
			var next atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := s.Acquire(b.Context(), attempts[next.Add(7)%keys]); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// textbook is the token bucket as it is usually written: a hash with the tokens and
// the time, all of it read and written back on each call.
const textbook = `
local clock = redis.call('TIME')
local ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local price, admitted, retry = tonumber(ARGV[1]), 1, 0
local levels = {}
for n = 1, #KEYS do
  local most, per_ms = tonumber(ARGV[n * 2]), tonumber(ARGV[n * 2 + 1])
  local saved = redis.call('HMGET', KEYS[n], 'level', 'at')
  local level, at = tonumber(saved[1]) or most, tonumber(saved[2]) or ms
  if at < ms then level = math.min(most, level + (ms - at) * per_ms) end
  if level < price then
    admitted = 0
    retry = math.max(retry, math.ceil((price - level) / per_ms))
  end
  levels[n] = {level, most, per_ms}
end
local answer = {admitted, retry}
for n = 1, #KEYS do
  local level, most, per_ms = unpack(levels[n])
  level = level - price * admitted
  redis.call('HSET', KEYS[n], 'level', level, 'at', ms)
  redis.call('PEXPIRE', KEYS[n], math.ceil(most / per_ms))
  answer[#answer + 1] = math.floor(level)
end
return answer
`

// BenchmarkRedisMicroseconds prints what a call costs Redis itself, by its own count,
// for the textbook bucket and for ours, in alternating rounds of one run; then the
// ratios. The time per operation that Go prints means nothing here.
func BenchmarkRedisMicroseconds(b *testing.B) {
	cluster := testenv.PrivateRedisCluster(b)
	s := openStore(b, cluster.Addrs)
	initialise(b, s)
	ctx := b.Context()
	sha := ""
	for i := range cluster.Addrs {
		sha = do(b, cluster, i, "SCRIPT", "LOAD", textbook)
	}
	const keys, batch = 5_000, 200
	r := rand.New(rand.NewPCG(1, 1))
	runs := map[string]func(n int){
		"textbook": func(n int) {
			pipe := s.Client().Pipeline()
			for range n {
				i := r.IntN(keys)
				pipe.EvalSha(ctx, sha, []string{s.BucketKey(i%8, fmt.Sprintf("api-free:k:t%08d", i))}, 1, 400_000, 0.001)
			}
			if _, err := pipe.Exec(ctx); err != nil {
				b.Fatal(err)
			}
		},
	}
	for _, shape := range shapeNames {
		attempt := shapes(s)[shape]
		runs[shape] = func(n int) {
			done := make(chan error, n)
			for range n {
				i := r.IntN(keys)
				go func() {
					_, err := s.Acquire(ctx, attempt(i%8, i))
					done <- err
				}()
			}
			for range n {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	names := append([]string{"textbook"}, shapeNames...)
	for _, name := range names { // every key exists, as in steady state
		for range keys / batch * 3 {
			runs[name](batch)
		}
	}
	spent, calls := map[string]float64{}, map[string]float64{}
	for b.Loop() {
		for _, name := range names {
			us, n := evalsha(b, cluster)
			runs[name](batch)
			us2, n2 := evalsha(b, cluster)
			spent[name] += us2 - us
			calls[name] += n2 - n
		}
	}
	base := spent["textbook"] / calls["textbook"]
	for _, name := range names {
		each := spent[name] / calls[name]
		b.ReportMetric(each, name+"-us")
		if name != "textbook" {
			b.ReportMetric(each/base, name+"/textbook")
		}
	}
}

// evalsha sums what the primaries spent on script calls.
func evalsha(b *testing.B, cluster *testenv.Cluster) (us, calls float64) {
	b.Helper()
	for i := range cluster.Addrs {
		for line := range strings.SplitSeq(do(b, cluster, i, "INFO", "commandstats"), "\n") {
			rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:")
			if !ok {
				continue
			}
			for field := range strings.SplitSeq(rest, ",") {
				name, text, _ := strings.Cut(field, "=")
				n, _ := strconv.ParseFloat(text, 64)
				switch name {
				case "calls":
					calls += n
				case "usec":
					us += n
				}
			}
		}
	}
	return us, calls
}

// BenchmarkMemoryPerKey prints the bytes that Redis uses for one bucket whose key has
// 39 characters, and for a log of ten, by its own count (key and value, without its share of the two hash tables).
func BenchmarkMemoryPerKey(b *testing.B) {
	s := openStore(b, testenv.RedisCluster(b).Addrs)
	initialise(b, s)
	busy := limit(100_000, 1000, time.Second) // too fast for the narrow form
	entries := map[string]quota.Entry{
		"regional": bucketEntry(s, 1, "", limit(1000, 60, time.Minute)), "global": globalEntry(s, 1, "", "p", limit(1000, 60, time.Minute)),
		"global-busy": globalEntry(s, 1, "", "busy", busy), "log-of-10": logEntry(s, 1, "", 10, time.Hour),
	}
	for b.Loop() {
		for name, e := range entries {
			e.Bucket += name
			e.Bucket += strings.Repeat("x", 39-len(e.Bucket))
			a := one(e)
			a.Cost = 7 * token
			if name == "log-of-10" {
				a.Cost = 10 * token
			}
			if _, err := s.Acquire(b.Context(), a); err != nil {
				b.Fatal(err)
			}
			n, err := s.Client().MemoryUsage(context.WithoutCancel(b.Context()), e.Bucket).Result()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(n), name+"-B")
		}
	}
}
