#!/usr/bin/env bash
# Builds an example and runs it: clients/go/example.sh producer|consumer-rabbitmq|consumer-kafka|consumer-versions
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/examples"

[[ -z ${POSTRIDER_TEST_GO:-} ]] || PATH=$(dirname "$POSTRIDER_TEST_GO"):$PATH
export GOFLAGS='-modcacherw -buildvcs=false' GOWORK=off GOTOOLCHAIN=local
cache=${POSTRIDER_SERVICES_DIR:-$(cd ../../.. && pwd)/.services}/cache
export GOMODCACHE=$cache/go-modules GOCACHE=$cache/go-build

mkdir -p "$cache/go-examples"
# Several may be started at once.
flock "$cache/go-examples" go build -o "$cache/go-examples/" "./$1"
exec "$cache/go-examples/$1"
