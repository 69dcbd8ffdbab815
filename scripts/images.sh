#!/usr/bin/env bash
# Builds the images that the tests run: weir/test-redis:7 and weir/test-postgres:15.
#
# Both stand on Debian 12. The base is pulled; where no registry answers it is
# made from Debian packages (debootstrap, as root), with the package sources that
# this machine's own apt uses. Such an image is for this machine: do not push it.
# An image whose inputs did not change is left as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

upstream=debian:bookworm-slim
own=weir/debian:bookworm

say() { echo "images: $*" >&2; }
die() {
	say "$*"
	exit 1
}

command -v docker >/dev/null || die "docker is not installed; install Docker Engine (Debian: apt-get install docker.io) and run this again"
docker info >/dev/null 2>&1 || die "the Docker daemon does not answer; start it, or add yourself to the group docker, and run this again"

has_image() { docker image inspect "$1" >/dev/null 2>&1; }

# debian_sources prints this machine's Debian 12 package sources, one per line, for sources.list.
debian_sources() {
	# shellcheck disable=SC2016 # apt fills these in
	apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk '$2 ~ /^bookworm/ && $3 == "main" { print "deb", $1, $2, $3 }' | sort -u
}

# bootstrap_base makes the base image without a registry.
bootstrap_base() {
	[ "$(id -u)" = 0 ] || die "$upstream cannot be pulled and making a base image needs root: run 'sudo make images'"
	command -v apt-get >/dev/null || die "$upstream cannot be pulled and this is no Debian: pull it where a registry answers, then 'docker load' it here"
	if ! command -v debootstrap >/dev/null; then
		say "installing debootstrap"
		apt-get update -qq >&2 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >&2
	fi
	local sources mirror
	sources=$(debian_sources)
	mirror=$(awk '$3 == "bookworm" { print $2; exit }' <<<"$sources")
	[ -n "$mirror" ] || die "this machine's apt has no source for Debian bookworm main; add one and run this again"

	root=$(mktemp -d)
	trap 'rm -rf "$root"' EXIT
	say "making $own from Debian packages"
	debootstrap --variant=minbase --include=ca-certificates bookworm "$root" "$mirror" >"$root.log" 2>&1 ||
		{ tail -n 30 "$root.log" >&2; die "debootstrap failed"; }
	rm -f "$root.log"
	echo "$sources" >"$root/etc/apt/sources.list"
	apt-config dump | grep -E '^Acquire::(http|https|Check|Retries|ForceIPv4)' >"$root/etc/apt/apt.conf.d/90host" || true
	rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}/*
	tar -C "$root" -c . | docker import --change 'CMD ["/bin/sh"]' - "$own" >/dev/null
}

# base prints the image to build on.
base() {
	if has_image "$upstream"; then
		echo "$upstream"
	elif has_image "$own"; then
		echo "$own"
	elif timeout 120 docker pull -q "$upstream" >/dev/null 2>&1; then
		echo "$upstream"
	else
		bootstrap_base
		echo "$own"
	fi
}

# build DIR TAG builds one image unless it is there with the same inputs.
build() {
	local dir=$1 tag=$2 inputs label
	inputs=$(find "$dir" -type f | sort | xargs cat | sha256sum | cut -c1-16)
	label=$(docker image inspect --format '{{index .Config.Labels "weir.inputs"}}' "$tag" 2>/dev/null || true)
	if [ "$label" = "$inputs" ]; then
		say "$tag is up to date"
		return
	fi
	: "${BASE:=$(base)}"
	say "building $tag on $BASE"
	local log
	log=$(mktemp)
	docker build --build-arg BASE="$BASE" --build-arg http_proxy --build-arg https_proxy \
		--label weir.inputs="$inputs" -t "$tag" "$dir" >"$log" 2>&1 || { tail -n 40 "$log" >&2; rm -f "$log"; die "building $tag failed"; }
	rm -f "$log"
}

build deploy/images/redis weir/test-redis:7
build deploy/images/postgres weir/test-postgres:15
