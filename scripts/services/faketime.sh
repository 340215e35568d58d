# libfaketime: only installed, for the tests that shift the clock of a process. Debian's package is unpacked, not
# installed, which needs no root.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

faketime_dir=$cache/libfaketime

# Prints the library to preload: the machine's own, else ours.
faketime_library() {
  find "$faketime_dir" /usr/lib /usr/lib64 -path '*faketime*' -name 'libfaketimeMT.so.1' -print -quit 2>/dev/null
}

faketime_packages() { [[ -n $(faketime_library) ]] || have dpkg-deb || echo libfaketime; }

# By the machine's package lists, else by new ones: a bare machine has none.
faketime_fetch() {
  local own=(-o "Dir::State::lists=$1/lists" -o "Dir::Cache=$1/cache")
  env --chdir="$1" apt-get download libfaketime && return
  mkdir -p "$1/lists/partial" "$1/cache/archives/partial"
  apt-get "${own[@]}" update && env --chdir="$1" apt-get "${own[@]}" download libfaketime
}

faketime_install() {
  [[ -z $(faketime_library) ]] || return 0
  local start part=$faketime_dir.part
  start=$(now_ms)
  have dpkg-deb || die faketime "no libfaketimeMT.so.1 below /usr/lib; install the package libfaketime"
  say faketime "fetching libfaketime…"
  rm -rf "$part" && mkdir -p "$part"
  quietly faketime "$logs/install-faketime.log" faketime_fetch "$part" ||
    die faketime "the package libfaketime could not be fetched; install it"
  dpkg-deb -x "$part"/libfaketime_*.deb "$part"
  rm -rf "$faketime_dir" "$part/lists" "$part/cache" && mv "$part" "$faketime_dir"
  say faketime "installed in $(since "$start")"
}

faketime_env() { export_line POSTRIDER_TEST_FAKETIME "$(faketime_library)"; }
