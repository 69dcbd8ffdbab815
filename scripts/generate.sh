#!/bin/sh
# Generates gen/ from proto/. Needs Go and the Go module proxy, nothing else.
#
#   scripts/generate.sh           lint the protos and write gen/
#   scripts/generate.sh --check   fail when gen/ is not what the protos generate
#
# Versions are pinned here (buf) and in go.mod (the two plugins).
set -eu

BUF_VERSION=1.75.0

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root/proto"

run_buf() {
	if [ "$(buf --version 2>/dev/null)" = "$BUF_VERSION" ]; then
		buf "$@"
	else
		# An empty GOFLAGS keeps -mod settings of the caller away from a tool
		# that is no part of this module.
		GOFLAGS='' go run "github.com/bufbuild/buf/cmd/buf@v$BUF_VERSION" "$@"
	fi
}

if [ "${1:-}" = --check ]; then
	# The template writes to ../gen, so a copy of proto/ beside an empty gen/,
	# inside the module so that "go run" finds the pinned plugins.
	tmp=$(mktemp -d "$root/.generate.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	cp -R "$root/proto" "$tmp/proto"
	cd "$tmp/proto"
	run_buf lint
	run_buf generate
	diff -r "$tmp/gen" "$root/gen" || {
		echo "gen/ is out of date: run scripts/generate.sh" >&2
		exit 1
	}
	exit 0
fi

run_buf lint
run_buf format -w
run_buf generate
