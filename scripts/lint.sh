#!/usr/bin/env bash
# `make lint`: formatting, clippy, documentation and the scripts themselves; any warning fails.

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
cd "$repo"

"$repo/scripts/services.sh" install toolchain

say lint "formatting…"
cargo fmt --all --check
say lint "clippy…"
cargo clippy --workspace --all-targets --all-features -- -D warnings
say lint "documentation…"
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --all-features
if have shellcheck; then
  say lint "scripts…"
  mapfile -t scripts < <(grep -rlE '^#( shellcheck shell=|!.*)bash' scripts .ci)
  shellcheck -x "${scripts[@]}"
else
  say lint "scripts: skipped, no shellcheck on PATH"
fi
say lint "clean"
