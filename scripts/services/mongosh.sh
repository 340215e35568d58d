# mongosh: only installed, for the tests of schema/mongodb-setup.js.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

mongosh_dir=$cache/mongosh-$MONGOSH_VERSION

mongosh_binary() {
  command -v mongosh && return
  [[ -x $mongosh_dir/mongosh ]] && echo "$mongosh_dir/mongosh"
}

mongosh_packages() { mongosh_binary >/dev/null || node_packages; }

mongosh_install() {
  mongosh_binary >/dev/null && return
  install_one node
  local start node part=$mongosh_dir.part
  start=$(now_ms)
  node=$(node_home)/node
  say mongosh "fetching mongosh $MONGOSH_VERSION…"
  rm -rf "$part" && mkdir -p "$part"
  echo '{ "private": true }' >"$part/package.json"
  # Its optional parts are native modules for Kerberos and encryption, which are not used here.
  quietly mongosh "$logs/install-mongosh.log" "$(node_home)/npm" install --prefix "$part" --cache "$cache/npm" \
    --omit=optional --ignore-scripts --no-audit --no-fund "mongosh@$MONGOSH_VERSION" ||
    die mongosh "mongosh could not be fetched; npm must reach its registry, or put a mongosh on PATH"
  # Names its Node, which may differ from the one on PATH.
  # shellcheck disable=SC2016 # for the script to expand
  printf '#!/bin/sh\nexec %q "$(dirname "$0")/node_modules/mongosh/bin/mongosh.js" "$@"\n' "$node" >"$part/mongosh"
  chmod +x "$part/mongosh"
  "$part/mongosh" --version >/dev/null 2>"$logs/install-mongosh.log" ||
    die mongosh "it does not run with $node: $(head -n 1 "$logs/install-mongosh.log")"
  rm -rf "$mongosh_dir" && mv "$part" "$mongosh_dir"
  rm -rf "$cache/npm" # the same packages again
  say mongosh "installed $MONGOSH_VERSION in $(since "$start")"
}

mongosh_env() { export_line POSTRIDER_TEST_MONGOSH "$(mongosh_binary || true)"; }
