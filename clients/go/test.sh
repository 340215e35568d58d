#!/usr/bin/env bash
# Checks and tests all of the Go client against real servers.
#
#   eval "$(scripts/services.sh env)"; POSTRIDER_BIN=target/debug/postrider clients/go/test.sh
#
# Environment: POSTRIDER_TEST_MONGODB_URI, POSTRIDER_TEST_MONGOD, POSTRIDER_TEST_AMQP_URI, POSTRIDER_TEST_KAFKA_BROKERS,
# POSTRIDER_BIN; POSTRIDER_TEST_GO (the command) if go is not on PATH, POSTRIDER_SERVICES_DIR for downloads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
for variable in POSTRIDER_TEST_MONGODB_URI POSTRIDER_TEST_MONGOD POSTRIDER_TEST_AMQP_URI POSTRIDER_TEST_KAFKA_BROKERS \
  POSTRIDER_BIN; do
  [[ -n ${!variable:-} ]] || { echo "error: $variable is not set" >&2; exit 1; }
done
POSTRIDER_BIN=$(realpath "$POSTRIDER_BIN")
export POSTRIDER_BIN
[[ -z ${POSTRIDER_TEST_GO:-} ]] || PATH=$(dirname "$POSTRIDER_TEST_GO"):$PATH
export GOFLAGS='-modcacherw -buildvcs=false' GOWORK=off GOTOOLCHAIN=local
if [[ -n ${POSTRIDER_SERVICES_DIR:-} ]]; then
  export GOMODCACHE=$POSTRIDER_SERVICES_DIR/cache/go-modules GOCACHE=$POSTRIDER_SERVICES_DIR/cache/go-build
fi

modules=(. otel conformance examples tools)
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT

say() { printf '%-11s %s\n' go "$1" >&2; }

say "formatter, go.mod, vet and staticcheck…"
unformatted=$(gofmt -l .)
[[ -z $unformatted ]] || { echo "error: gofmt -w $unformatted" >&2; exit 1; }
go -C tools build -o "$tools/" honnef.co/go/tools/cmd/staticcheck ./modproxy
for module in "${modules[@]}"; do
  (cd "$module" && go mod tidy -diff && go vet ./... && "$tools/staticcheck" ./...)
done

for module in . conformance otel examples; do
  say "testing $module…"
  # Tests mostly wait: for MongoDB, brokers and pauses.
  go -C "$module" test -count=1 -p 4 -parallel 8 -timeout 10m ./...
done

say "the package in an empty project…"
./check-package.sh
