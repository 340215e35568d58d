#!/usr/bin/env bash
# `make book`: the documentation as a book in target/book, with mdBook; a broken link or a warning fails.

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
# shellcheck source=scripts/services/packages.sh
source "$repo/scripts/services/packages.sh"
cd "$repo"

"$repo/scripts/services.sh" install mdbook
eval "$("$repo/scripts/services.sh" env mdbook)"
have python3 || install_packages python3

rm -rf target/book
quietly book "$logs/book.log" "$POSTRIDER_MDBOOK" build docs
! grep -E 'WARN|ERROR' "$logs/book.log" || die book "mdBook warns"
repository=$(sed -n 's/^git-repository-url = "\(.*\)"$/\1/p' docs/book.toml)
python3 scripts/book.py target/book "$repository"
say book "target/book/index.html"
