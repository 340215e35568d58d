# cargo-deny, which `make lint` uses to check the dependencies against .deny.toml. Only installed, and only where it is
# named: it is built from crates.io.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

# Named by the pin, so that a new one makes a new folder.
deny_dir=$cache/cargo-deny-$CARGO_DENY_VERSION

deny_packages() { toolchain_packages; }

deny_install() { install_crate deny cargo-deny "$CARGO_DENY_VERSION" "$deny_dir"; }

# Holds bin/cargo-deny.
deny_env() { [[ ! -d $deny_dir ]] || export_line POSTRIDER_CARGO_DENY "$deny_dir/bin/cargo-deny"; }
