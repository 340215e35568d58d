# typos, which finds misspelled words (.typos.toml): a binary inside a Python wheel. Only installed, and only where it
# is named.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

typos_dir=$cache/typos-${TYPOS_WHEEL##*==}

typos_packages() { [[ -x $typos_dir/typos ]] || wheel_packages; }

typos_install() {
  [[ ! -x $typos_dir/typos ]] || return 0
  local part=$typos_dir.part
  say typos "fetching $TYPOS_WHEEL, 8 MB…"
  fetch_wheel typos "$TYPOS_WHEEL" "$TYPOS_WHEEL_SHA256_X86_64" "$TYPOS_WHEEL_SHA256_AARCH64" "$part" ||
    die typos "failed to fetch it; pip must reach its index"
  mv "$part"/typos-*.data/scripts/typos "$part/typos"
  chmod +x "$part/typos" # zipfile leaves it without
  rm -rf "$typos_dir" && mv "$part" "$typos_dir"
}

typos_env() { [[ ! -d $typos_dir ]] || export_line POSTRIDER_TYPOS "$typos_dir/typos"; }
