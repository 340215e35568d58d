#!/usr/bin/env bash
# `make test`: every test, against real servers. Builds, starts the servers, runs, and stops the servers it started.
#
#   scripts/test.sh [ARG…]    ARGs go to `cargo test`, as in: scripts/test.sh --test relay -- --nocapture
#   KEEP_SERVICES=1           leave the servers running, for a quicker next time

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
# shellcheck source=scripts/services/borrow.sh
source "$repo/scripts/services/borrow.sh"
cd "$repo"

start=$(now_ms)
"$services" install toolchain mongosh python

tests=(--workspace --features failpoints)
# All but the benchmarks, which only `make bench` runs.
(($# > 0)) || tests+=(--lib --bins --tests --examples)
say test "building; the first time takes some minutes…"
cargo test "${tests[@]}" --no-run "$@"

borrow_services mongodb rabbitmq kafka prometheus

say test "running the tests…"
cargo test "${tests[@]}" "$@"
if (($# == 0)); then
  say test "running the examples in the documentation…"
  cargo test --workspace --doc --features failpoints
fi
say test "all passed, $(since "$start") in all"
