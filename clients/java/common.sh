# Sourced by the scripts here: Maven, with a repository of its own that all of them share.
# shellcheck shell=bash

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
services_dir=${POSTRIDER_SERVICES_DIR:-$(cd "$here/../.." && pwd)/.services}
repository=$services_dir/cache/maven-clients
maven=${POSTRIDER_TEST_MAVEN:-mvn} # the program
mkdir -p "$repository"

maven() { # maven ARG…
  "$maven" -B -q -Dstyle.color=never -Dmaven.repo.local="$repository" "$@"
}

say() { printf '%-11s %s\n' java "$1" >&2; }
die() {
  printf '%-11s error: %s\n' java "$1" >&2
  exit 1
}
