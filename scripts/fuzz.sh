#!/usr/bin/env bash
# `make fuzz`: the targets of tests/fuzz, and their like beside the code, with fresh input for minutes. No servers.
#
#   FUZZ_MINUTES=5      how long
#   FUZZ_CASES=2000     inputs per target and round; rounds go on until the time is up
#   scripts/fuzz.sh [TARGET]    one target alone, as in: scripts/fuzz.sh configuration
#
# What is found is written by proptest to proptest-regressions/ (or tests/proptest-regressions/): commit it.
# In a debug build, whose arithmetic panics where it overflows.

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
cd "$repo"

minutes=${FUZZ_MINUTES:-5}
export PROPTEST_CASES=${FUZZ_CASES:-2000}
# A case that the generator can't make fit is no finding, however many rounds there are.
export PROPTEST_MAX_GLOBAL_REJECTS=$((PROPTEST_CASES * 4))
target=${1:-}

"$repo/scripts/services.sh" install toolchain
start=$(now_ms)
say fuzz "building…"
cargo test --features failpoints --test fuzz --lib --no-run

end=$(($(date +%s) + minutes * 60))
rounds=0
while (($(date +%s) < end)); do
  cargo test --quiet --features failpoints --test fuzz -- "$target"
  [[ -n $target ]] || cargo test --quiet --features failpoints --lib -- any_message
  rounds=$((rounds + 1))
  say fuzz "round $rounds is through, $(since "$start") in all"
done
say fuzz "nothing found in $rounds rounds of $PROPTEST_CASES cases for each target"
