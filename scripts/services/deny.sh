# cargo-deny, which `make lint` uses to check the dependencies against .deny.toml. Only installed, and only where it is
# named: it is built from crates.io.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

# Named by the pin, so that a new one makes a new folder.
deny_dir=$cache/cargo-deny-$CARGO_DENY_VERSION

deny_packages() { toolchain_packages; }

# Without optimisation: it takes two minutes of one core to build, and seconds to run.
deny_install() {
  [[ ! -x $deny_dir/bin/cargo-deny ]] || return 0
  local start
  start=$(now_ms)
  say deny "building cargo-deny $CARGO_DENY_VERSION; takes some minutes…"
  CARGO_PROFILE_DEV_DEBUG=0 quietly deny "$logs/install-deny.log" cargo install --locked --debug \
    --version "$CARGO_DENY_VERSION" cargo-deny --root "$deny_dir.part" --target-dir "$deny_dir.target" ||
    die deny "it could not be built; cargo must reach its registry"
  rm -rf "$deny_dir.target" "$deny_dir"
  mv "$deny_dir.part" "$deny_dir"
  say deny "installed in $(since "$start")"
}

# Holds bin/cargo-deny.
deny_env() { [[ ! -d $deny_dir ]] || export_line POSTRIDER_CARGO_DENY "$deny_dir/bin/cargo-deny"; }
