#!/usr/bin/env bash
# `make test`: every test, against real servers. Builds, starts the servers, runs, and stops the servers it started.
#
#   scripts/test.sh [ARG…]    ARGs go to `cargo test`, as in: scripts/test.sh --test ordering -- --nocapture
#   KEEP_SERVICES=1           leave the servers running, for a quicker next time

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
# shellcheck source=scripts/services/borrow.sh
source "$repo/scripts/services/borrow.sh"
cd "$repo"

start=$(now_ms)
"$services" install toolchain mongosh python schemathesis faketime helm

tests=(--workspace --features failpoints)
# All targets except the benchmarks, which only `make bench` runs.
all=(--lib --bins --tests --examples)
(($# == 0)) || all=()
say test "building; the first time takes some minutes…"
cargo test "${tests[@]}" "${all[@]}" --no-run "$@"

borrow_services mongodb mongodb-auth rabbitmq kafka prometheus

# Prints a line for each test binary, and everything if one fails.
run_group() { # run_group NAME
  local log=$logs/test-$1.log start
  start=$(now_ms)
  if "$1" 2>&1 </dev/null | tee "$log" | sed -un '/^ *Running\|^test result\|^clients/p'; then
    say test "$1: passed in $(since "$start")"
  else
    cat "$log"
    warn test "$1: failed after $(since "$start")"
    return 1
  fi
}

with_fail_points() {
  cargo test "${tests[@]}" "${setting_fail_points[@]/#/--test=}" && scripts/clients.sh
}

without_fail_points() {
  cargo test "${tests[@]}" --lib --bins --examples "${others[@]/#/--test=}"
}

if (($# > 0)); then
  cargo test "${tests[@]}" "$@"
else
  # Two groups at a time, since tests mostly wait. A fail point is one setting of a whole server: the tests that set one
  # on the shared mongod are in one group, one binary after the other, and so are the clients' suites.
  setting_fail_points=(adopt clients event_store lifecycle outages projections queries)
  others=()
  for test in tests/*/main.rs tests/*.rs; do
    test=$(basename "${test%/main.rs}" .rs)
    [[ " ${setting_fail_points[*]} " == *" $test "* ]] || others+=("$test")
  done
  export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
  say test "running the tests; each group prints its output when it ends…"
  run_group with_fail_points &
  first=$!
  failed=0
  run_group without_fail_points || failed=1
  wait "$first" || failed=1
  ((failed == 0)) || die test "not all passed"
  say test "running the examples in the documentation…"
  cargo test "${tests[@]}" --doc
fi
say test "all passed, $(since "$start") in all"
