// Package testenv gives tests real backends: a Redis 7 Cluster of three
// primaries and PostgreSQL.
//
// Each backend is looked for in this order: an address in the environment
// (EnvRedisCluster, EnvPostgres), else a container started through
// testcontainers, else the test is skipped with the reason. With CI set a
// missing backend fails the test instead, so that a run that tested nothing
// never looks green.
//
// A process starts a backend at its first use and shares it between all of its
// tests; what keeps them apart is one key prefix (Prefix) or one schema
// (Postgres) per test. `make test` starts the backends once for all packages,
// through cmd/testrun, and hands them down in the environment. A test that has
// to break something asks for a cluster of its own: PrivateRedisCluster.
//
// Every package that calls this one has a TestMain with
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// which removes the containers and looks for leaked goroutines. What a killed
// process left behind is removed by the next one that starts a container.
package testenv
