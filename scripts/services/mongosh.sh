# mongosh: only installed, for the tests of schema/mongodb-setup.js.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

mongosh_dir=$cache/mongosh-$MONGOSH_VERSION

mongosh_binary() {
  command -v mongosh && return
  [[ -x $mongosh_dir/node_modules/.bin/mongosh ]] && echo "$mongosh_dir/node_modules/.bin/mongosh"
}

mongosh_packages() {
  mongosh_binary >/dev/null && return
  have node || echo nodejs
  have npm || echo npm
}

mongosh_install() {
  mongosh_binary >/dev/null && return
  local start
  start=$(now_ms)
  say mongosh "fetching mongosh $MONGOSH_VERSION…"
  rm -rf "$mongosh_dir.part" && mkdir -p "$mongosh_dir.part"
  echo '{ "private": true }' >"$mongosh_dir.part/package.json"
  # Its optional parts are native modules for Kerberos and encryption, which would be compiled here for nothing.
  quietly mongosh "$logs/install-mongosh.log" npm install --prefix "$mongosh_dir.part" --cache "$cache/npm" \
    --omit=optional --ignore-scripts --no-audit --no-fund "mongosh@$MONGOSH_VERSION" ||
    die mongosh "mongosh could not be fetched; npm must reach its registry, or put a mongosh on PATH"
  "$mongosh_dir.part/node_modules/.bin/mongosh" --version >/dev/null 2>"$logs/install-mongosh.log" ||
    die mongosh "it does not run with node $(node --version): $(head -n 1 "$logs/install-mongosh.log")"
  mv "$mongosh_dir.part" "$mongosh_dir"
  rm -rf "$cache/npm" # the same packages again
  say mongosh "installed $MONGOSH_VERSION in $(since "$start")"
}

mongosh_env() { export_line POSTRIDER_TEST_MONGOSH "$(mongosh_binary || true)"; }
