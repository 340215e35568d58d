#!/usr/bin/env bash
# `make bench`: the benchmarks, against real servers on this machine. ARGs go to `cargo bench`.

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
# shellcheck source=scripts/services/borrow.sh
source "$repo/scripts/services/borrow.sh"
cd "$repo"

"$services" install toolchain
say bench "building optimised; the first time takes some minutes…"
cargo bench --no-run "$@"
borrow_services mongodb rabbitmq kafka
say bench "measuring…"
cargo bench "$@"
