# A generator of clients from an OpenAPI document, and the compiler of what it writes: only installed.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

openapi_lock=$repo/scripts/services/openapi/package-lock.json
# Named by the pins, so that new ones make a new folder.
openapi_dir=$cache/openapi-$(sha256sum "$openapi_lock" | cut -c 1-12)

# Prints the folder with its packages.
openapi_home() { [[ -d $openapi_dir/node_modules ]] && echo "$openapi_dir"; }

openapi_packages() { openapi_home >/dev/null || node_packages; }

openapi_install() {
  openapi_home >/dev/null && return
  install_one node
  local start part=$openapi_dir.part
  start=$(now_ms)
  say openapi "fetching its packages…"
  rm -rf "$part" && mkdir -p "$part"
  cp "$(dirname "$openapi_lock")"/{package.json,package-lock.json,.npmrc} "$part"
  PATH=$(node_home):$PATH quietly openapi "$logs/install-openapi.log" npm ci --prefix "$part" \
    --cache "$cache/npm-openapi" --ignore-scripts --loglevel=error ||
    die openapi "the packages could not be fetched; npm must reach its registry"
  rm -rf "$openapi_dir" && mv "$part" "$openapi_dir"
  rm -rf "$cache/npm-openapi" # the same packages again
  say openapi "installed in $(since "$start")"
}

openapi_env() { export_line POSTRIDER_TEST_OPENAPI "$(openapi_home || true)"; }
