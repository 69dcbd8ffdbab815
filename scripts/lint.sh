#!/usr/bin/env bash
# lint.sh VERSION: go vet, gofmt and golangci-lint of that version, built into
# bin/ when neither PATH nor GOPATH has it (about two minutes, once).
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1

unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
	echo "not gofmt-ed:" >&2
	echo "$unformatted" >&2
	exit 1
fi
go vet ./...

linter=
for candidate in golangci-lint "$(go env GOPATH)/bin/golangci-lint" bin/golangci-lint; do
	if "$candidate" version 2>/dev/null | grep -qF "has version $version "; then
		linter=$candidate
		break
	fi
done
if [ -z "$linter" ]; then
	echo "lint: building golangci-lint $version" >&2
	# Its dependencies are its own, not this module's.
	GOFLAGS='' GOBIN=$PWD/bin go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$version"
	linter=bin/golangci-lint
fi
exec "$linter" run
