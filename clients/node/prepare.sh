# Sourced by the scripts here: Node on the PATH, the packages of the lock file, and the built library.
# shellcheck shell=bash

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

[[ -z ${POSTRIDER_TEST_NODE:-} ]] || PATH=$POSTRIDER_TEST_NODE:$PATH
[[ -z ${POSTRIDER_SERVICES_DIR:-} ]] || export npm_config_cache=$POSTRIDER_SERVICES_DIR/cache/npm-clients

prepare() {
  if ! cmp --silent package-lock.json node_modules/.installed; then
    npm ci --prefer-offline --ignore-scripts --loglevel=error
    cp package-lock.json node_modules/.installed
  fi
  if [[ ! -e dist/index.js || -n $(find src tsconfig.json package.json -newer dist/index.js) ]]; then
    npm run --silent build
  fi
}

# Several scripts may run at once.
(flock 8 && prepare) 8<package.json
