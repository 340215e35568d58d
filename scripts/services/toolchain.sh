# What building needs beside Rust itself: a C compiler for `ring`, cmake and friends for librdkafka.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

toolchain_packages() {
  have cc || echo gcc libc6-dev
  have c++ || echo g++
  have make || echo make
  have cmake || echo cmake
  have pkg-config || echo pkg-config
}

toolchain_install() {
  have cargo || die toolchain "cargo is missing. Install Rust by rustup (https://rustup.rs), not from Debian, whose Rust is too old:
            the package needs Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repo/Cargo.toml") or newer"
  have rustup || return 0
  # A minimal toolchain lacks these two, which `make lint` needs.
  cargo clippy --version >/dev/null 2>&1 || quietly toolchain "$logs/install-toolchain.log" rustup component add clippy
  cargo fmt --version >/dev/null 2>&1 || quietly toolchain "$logs/install-toolchain.log" rustup component add rustfmt
}
