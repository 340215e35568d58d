# What a build needs in addition to Rust: a C compiler for `ring`, make and OpenSSL for librdkafka, which brings its own
# zlib and zstd.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

# `openssl-sys` reads OPENSSL_DIR, the path of an OpenSSL in another place.
have_openssl_headers() {
  [[ -n ${OPENSSL_DIR:-} || -e /usr/include/openssl/ssl.h ]] || pkg-config --exists openssl 2>/dev/null
}

toolchain_packages() {
  have cc || echo gcc libc6-dev
  have c++ || echo g++
  have make || echo make
  have pkg-config || echo pkg-config
  have_openssl_headers || echo libssl-dev
}

toolchain_install() {
  have cargo || die toolchain "cargo is missing. Install Rust by rustup (https://rustup.rs), not from Debian, whose Rust is too old:
            the package needs Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repo/Cargo.toml") or newer"
  have rustup || return 0
  # A minimal toolchain lacks these two, which `make lint` needs.
  cargo clippy --version >/dev/null 2>&1 || quietly toolchain "$logs/install-toolchain.log" rustup component add clippy
  cargo fmt --version >/dev/null 2>&1 || quietly toolchain "$logs/install-toolchain.log" rustup component add rustfmt
}
