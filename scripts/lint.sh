#!/usr/bin/env bash
# `make lint`: formatting, clippy, documentation and the scripts themselves; any warning fails.

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
# shellcheck source=scripts/services/packages.sh
source "$repo/scripts/services/packages.sh"
cd "$repo"

"$repo/scripts/services.sh" install toolchain deny mdbook typos
eval "$("$repo/scripts/services.sh" env deny typos)"
have python3 || install_packages python3

say lint "formatting…"
cargo fmt --all --check
say lint "words…"
python3 scripts/words.py --self-test
python3 scripts/words.py scripts examples benches tests src crates clients
python3 scripts/words.py --texts ./*.md docs tests/README.md .github config schema helm src crates clients examples \
  scripts/*.sh scripts/services scripts/image compose.yaml
say lint "spelling…"
"$POSTRIDER_TYPOS"
say lint "book…"
scripts/book.sh
say lint "clippy…"
cargo clippy --workspace --all-targets --all-features -- -D warnings
say lint "documentation…"
# With the examples, dependencies have the same features as for clippy, and are not checked a second time. Not `--bins`: the
# page of the daemon's binary has the name of its library's.
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --all-features --lib --bin postrider-demo --examples
say lint "dependencies: licences, versions, sources…"
deny() { "$POSTRIDER_CARGO_DENY" --config .deny.toml --locked "$@"; }
deny check licenses bans sources
if timeout 120 "$POSTRIDER_CARGO_DENY" --config .deny.toml fetch db >"$logs/advisories.log" 2>&1; then
  say lint "dependencies: advisories…"
  deny check advisories
else
  say lint "advisories: skipped, the database cannot be reached ($logs/advisories.log); \`make advisories\` fails then"
fi
if have shellcheck; then
  say lint "scripts…"
  mapfile -t scripts < <(grep -rlE '^#( shellcheck shell=|!.*)bash' scripts .ci clients --exclude-dir=node_modules)
  shellcheck -x "${scripts[@]}"
else
  say lint "scripts: skipped, no shellcheck on PATH"
fi
say lint "clean"
