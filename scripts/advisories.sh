#!/usr/bin/env bash
# `make advisories`: known vulnerabilities of the dependencies, and abandoned crates among them. Fails where the database
# of RustSec cannot be reached.

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
cd "$repo"

"$repo/scripts/services.sh" install toolchain deny
eval "$("$repo/scripts/services.sh" env deny)"
"$POSTRIDER_CARGO_DENY" --config .deny.toml --locked check advisories
