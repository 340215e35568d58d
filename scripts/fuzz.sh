#!/usr/bin/env bash
# `make fuzz`: the targets of tests/fuzz, and every property test in the code, with fresh input for minutes. No servers.
#
#   FUZZ_MINUTES=5      how long
#   FUZZ_CASES=2000     inputs per property and round; rounds repeat until the time is up
#   scripts/fuzz.sh [TARGET]    one target of tests/fuzz alone, as in: scripts/fuzz.sh configuration
#
# Properties in the code are found by their `proptest!`: of each module with one, all unit tests run.
#
# proptest writes what it finds to proptest-regressions/ (or tests/proptest-regressions/): commit it.
# In a debug build, whose arithmetic panics where it overflows.

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
cd "$repo"

minutes=${FUZZ_MINUTES:-5}
export PROPTEST_CASES=${FUZZ_CASES:-2000}
# A case that the generator cannot make fit is not a finding, however many rounds there are.
export PROPTEST_MAX_GLOBAL_REJECTS=$((PROPTEST_CASES * 4))
target=${1:-}

# src/cli/output.rs is cli::output::, crates/relay/src/plan/tests.rs is plan::tests::
mapfile -t modules < <(grep -rl --include='*.rs' 'proptest!' src crates/*/src |
  sed -e 's|^\(crates/[^/]*/\)\?src/||' -e 's|\.rs$||' -e 's|/mod$||' -e 's|/|::|g' -e 's|$|::|' | sort)
((${#modules[@]})) || die fuzz "no module below src and crates has a proptest!"

"$repo/scripts/services.sh" install toolchain
start=$(now_ms)
say fuzz "building…"
cargo test --workspace --features failpoints --test fuzz --lib --no-run
unit_tests=$(cargo test --quiet --workspace --features failpoints --lib -- --list)
for module in "${modules[@]}"; do
  grep -q "^$module.*: test\$" <<<"$unit_tests" || die fuzz "$module has no unit test: its properties would not run"
done

end=$(($(date +%s) + minutes * 60))
rounds=0
while (($(date +%s) < end)); do
  cargo test --quiet --workspace --features failpoints --test fuzz -- "$target"
  [[ -n $target ]] || cargo test --quiet --workspace --features failpoints --lib -- "${modules[@]}"
  rounds=$((rounds + 1))
  say fuzz "round $rounds finished, $(since "$start") in total"
done
say fuzz "no failure in $rounds rounds of $PROPTEST_CASES cases for each property"
