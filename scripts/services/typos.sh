# typos, which finds misspelled words (.typos.toml). Only installed, and only where it is named.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

typos_dir=$cache/typos-${TYPOS_WHEEL##*==}

typos_packages() { [[ -x $typos_dir/typos ]] || wheel_packages; }

typos_install() {
  install_wheel_program typos "$TYPOS_WHEEL" "$TYPOS_WHEEL_SHA256_X86_64" "$TYPOS_WHEEL_SHA256_AARCH64" typos "$typos_dir"
}

typos_env() { [[ ! -d $typos_dir ]] || export_line POSTRIDER_TYPOS "$typos_dir/typos"; }
