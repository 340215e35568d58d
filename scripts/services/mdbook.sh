# mdBook, which builds the documentation as a book (scripts/book.sh). Only installed, and only where it is named: it is
# built from crates.io.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

# Named by the pin, so that a new one makes a new folder.
mdbook_dir=$cache/mdbook-$MDBOOK_VERSION

mdbook_packages() { toolchain_packages; }

mdbook_install() {
  install_crate mdbook mdbook "$MDBOOK_VERSION" "$mdbook_dir" --no-default-features --features search
}

mdbook_env() { [[ ! -d $mdbook_dir ]] || export_line POSTRIDER_MDBOOK "$mdbook_dir/bin/mdbook"; }
