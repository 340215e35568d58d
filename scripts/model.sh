#!/usr/bin/env bash
# `make model`: the protocols in every state that they can reach, also with the large bounds. It needs no servers. ARGs go to the tests: a filter.

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
cd "$repo"

"$repo/scripts/services.sh" install toolchain
say model "checking; the largest bounds take some minutes and some GiB…"
# One after the other, for the memory.
cargo test --package postrider-model -- --include-ignored --nocapture --test-threads 1 "$@"
