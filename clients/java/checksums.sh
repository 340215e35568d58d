#!/usr/bin/env bash
# Writes checksums.txt: the SHA-256 of each jar that Maven has fetched for this folder. Run it after a change of a version,
# in an empty repository (POSTRIDER_SERVICES_DIR), and read the difference.

# shellcheck source=clients/java/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$repository"
find . -name '*.jar' -not -path './com/postrider/*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum >"$here/checksums.txt"
