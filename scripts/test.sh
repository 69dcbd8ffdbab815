#!/usr/bin/env bash
# Brings up what the tests need, then runs `go test` with the given arguments
# through testrun. What is missing is installed where this user may (root on
# Debian); otherwise the message says what to install.
set -euo pipefail
cd "$(dirname "$0")/.."

# need COMMAND PACKAGE... makes sure that a command is there.
need() {
	local command=$1
	shift
	command -v "$command" >/dev/null && return
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		echo "test: installing $*" >&2
		apt-get update -qq >&2
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
	else
		echo "test: $command is missing; install it (Debian: apt-get install $*) and run this again" >&2
		exit 1
	fi
}

command -v go >/dev/null || { echo "test: Go is missing; install the version that go.mod names (https://go.dev/dl) and run this again" >&2; exit 1; }
# The race detector links against libc.
need gcc gcc libc6-dev
need docker docker.io
docker info >/dev/null 2>&1 || { [ "$(id -u)" = 0 ] && service docker start >&2 && timeout 30 sh -c 'until docker info >/dev/null 2>&1; do sleep 0.5; done'; } ||
	{ echo "test: the Docker daemon does not answer; start it (or join the group docker) and run this again" >&2; exit 1; }

scripts/images.sh
go build -o bin/testrun ./internal/testenv/cmd/testrun
# -count=1: a cached result says nothing about a server that was started a second ago.
exec bin/testrun -count=1 -timeout 20m "$@"
