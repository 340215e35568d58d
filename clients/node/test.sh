#!/usr/bin/env bash
# Checks the Node client: format and lint, build, tests against real servers, and the package in empty projects. Needs the
# variables of `scripts/services.sh env` and POSTRIDER_BIN, the binary of Postrider.

# shellcheck source=clients/node/prepare.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare.sh"

if grep -q '"resolved"' package-lock.json; then
  echo "package-lock.json has addresses of a registry; install with omit-lockfile-registry-resolved=true (.npmrc)" >&2
  exit 1
fi

npm run --silent check
npm test
./check-package.sh
