#!/usr/bin/env bash
# `make test`: every guarantee, against real servers. Builds, starts the servers, runs, and stops the servers it started.
# What takes long is left to `make test-all` (scripts/test-all.sh).
#
#   scripts/test.sh [ARG…]    ARGs go to `cargo test`, as in: scripts/test.sh --test ordering -- --nocapture
#   KEEP_SERVICES=1           leave the servers running, for a quicker next time
#   OVERLAP=1                 without ARGs: begin the next test binary when the current one has so many unfinished tests
#                             (scripts/run_tests.py); by default one binary runs at a time

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
# shellcheck source=scripts/services/borrow.sh
source "$repo/scripts/services/borrow.sh"
cd "$repo"

start=$(now_ms)
"$services" install toolchain mongosh python faketime

tests=(--workspace --features failpoints)
# Not the benchmarks, which only `make bench` runs, nor the examples, which have no tests: `make lint` compiles them, and
# tests include their code.
all=(--lib --bins --tests)
(($# == 0)) || all=()
say test "building; the first time takes some minutes…"
cargo test "${tests[@]}" "${all[@]}" --no-run "$@"

borrow_services mongodb mongodb-auth rabbitmq kafka prometheus

# Many tests wait: with one thread per core much of the machine is idle. With three, it is too busy for tests that
# compare times.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}

say test "running the tests…"
# One run names everything that is red.
if (($# > 0)) || ((${OVERLAP:-0} == 0)); then
  cargo test "${tests[@]}" "${all[@]}" --no-fail-fast "$@"
else
  cargo test "${tests[@]}" "${all[@]}" --no-run --message-format=json-render-diagnostics | scripts/run_tests.py "$OVERLAP"
fi
if (($# == 0)); then
  say test "running the examples in the documentation…"
  cargo test "${tests[@]}" --doc
fi
say test "all passed, $(since "$start") in all"
