#!/usr/bin/env bash
# `make chaos`: histories of a fleet of real processes between real servers, each with what its seed makes befall it
# (tests/chaos). The first that breaks the promise ends it, with exit code 1, its seed, its plan and where its logs lie.
#
#   SEEDS=10       how many histories, of random seeds
#   SEED=…         this one alone, again. The plan is the same to the millisecond; the course is real, and never quite
#   DURATION=30    seconds that producers and faults go on in each; servers' start, healing and verdict come on top

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
cd "$repo"

# Every server is the history's own: nothing needs to run.
"$repo/scripts/services.sh" install mongodb rabbitmq kafka faketime toolchain
eval "$("$repo/scripts/services.sh" env)"

say chaos "building…"
cargo test --features failpoints --test chaos --no-run

start=$(now_ms)
export CHAOS_LOGS=$logs/chaos
mkdir -p "$CHAOS_LOGS"
cargo test --quiet --features failpoints --test chaos -- --ignored --nocapture every_history
say chaos "every history kept the promise, $(since "$start") in all"
