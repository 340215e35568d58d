#!/usr/bin/env bash
# Checks the Node client: format and lint, build, tests against real servers, and the package in empty projects. Needs the
# variables of `scripts/services.sh env` and POSTRIDER_BIN, the binary of Postrider.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

[[ -z ${POSTRIDER_TEST_NODE:-} ]] || PATH=$POSTRIDER_TEST_NODE:$PATH
[[ -z ${POSTRIDER_SERVICES_DIR:-} ]] || export npm_config_cache=$POSTRIDER_SERVICES_DIR/cache/npm-clients

# The packages of the lock file, unless they are there.
if ! cmp --silent package-lock.json node_modules/.installed; then
  npm ci --prefer-offline --ignore-scripts --loglevel=error
  cp package-lock.json node_modules/.installed
fi
if grep -q '"resolved"' package-lock.json; then
  echo "package-lock.json has addresses of a registry; install with omit-lockfile-registry-resolved=true (.npmrc)" >&2
  exit 1
fi

npm run --silent check
npm run --silent build
npm test
./check-package.sh
