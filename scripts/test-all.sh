#!/usr/bin/env bash
# `make test-all`: everything that exists: `make test`, and then what that leaves out because it takes long.
#
#   scripts/test-all.sh [SLICE…]   only these slices
#   SLICE=auto                     the slice that the commit decides, so that each is run every few commits (.ci/run)
#   KEEP_SERVICES=1                leave the servers running, for a quicker next time

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
# shellcheck source=scripts/services/borrow.sh
source "$repo/scripts/services/borrow.sh"
cd "$repo"

slices=(histories stores clients go-java outages brokers described models)

# What a slice needs in addition to `make test`.
tools_of() { # tools_of SLICE
  case $1 in
    clients) echo node go java ;;
    go-java) echo go java ;;
    described) echo node schemathesis openapi helm ;;
  esac
}

# The long tests of these binaries. The programs are not tests: tests start them.
long() { # long BINARY…
  local binaries=() binary
  for binary in "$@"; do binaries+=(--test "$binary"); done
  cargo test --workspace --features failpoints "${binaries[@]}" -- --ignored --skip program_ --skip every_history
}

run_slice() {
  say test-all "slice $1…"
  case $1 in
    histories) long chaos projections ;;
    stores) long adopt feed event_store queries ;;
    clients) long clients && scripts/clients.sh node python ;;
    go-java) scripts/clients.sh go java ;;
    outages) long outages observability ;;
    brokers) long lifecycle sinks ordering ;;
    described) long http deployment ;;
    models) scripts/model.sh && FUZZ_MINUTES=2 scripts/fuzz.sh ;;
  esac
}

start=$(now_ms)
chosen=("$@")
if (($# == 0)); then
  chosen=("${slices[@]}")
  if [[ ${SLICE:-} == auto ]]; then
    commit=$(git rev-parse HEAD 2>/dev/null || echo 0)
    # Not the last one: the large models take too long for .ci/run.
    chosen=("${slices[$((16#${commit:0:7} % (${#slices[@]} - 1)))]}")
  fi
fi
tools=(toolchain mongosh python faketime)
for slice in "${chosen[@]}"; do
  [[ " ${slices[*]} " == *" $slice "* ]] || die test-all "unknown slice: $slice; the slices are: ${slices[*]}"
  # shellcheck disable=SC2207 # one name per word
  tools+=($(tools_of "$slice"))
done
"$services" install "${tools[@]}"
borrow_services mongodb mongodb-auth rabbitmq kafka prometheus
if (($# == 0)) && [[ ${SLICE:-} != auto ]]; then scripts/test.sh; fi
# The daemon, with the features of the tests: any others would compile the dependencies again.
cargo test --workspace --features failpoints --test layers --no-run
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
failed=()
for slice in "${chosen[@]}"; do run_slice "$slice" || failed+=("$slice"); done
((${#failed[@]} == 0)) || die test-all "failed: ${failed[*]}"
say test-all "all passed: ${chosen[*]}, $(since "$start") in all"
