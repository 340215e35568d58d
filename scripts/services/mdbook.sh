# mdBook, which builds the documentation as a book (scripts/book.sh). Only installed, and only where it is named: it is
# built from crates.io.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

# Named by the pin, so that a new one makes a new folder.
mdbook_dir=$cache/mdbook-$MDBOOK_VERSION

mdbook_packages() { toolchain_packages; }

# Without optimisation: it takes forty seconds of two cores to build, and less than one to run.
mdbook_install() {
  [[ ! -x $mdbook_dir/bin/mdbook ]] || return 0
  local start
  start=$(now_ms)
  say mdbook "building mdBook $MDBOOK_VERSION; takes a minute…"
  CARGO_PROFILE_DEV_DEBUG=0 quietly mdbook "$logs/install-mdbook.log" cargo install --locked --debug \
    --version "$MDBOOK_VERSION" mdbook --no-default-features --features search --root "$mdbook_dir.part" \
    --target-dir "$mdbook_dir.target" || die mdbook "failed to build it; cargo must reach its registry"
  rm -rf "$mdbook_dir.target" "$mdbook_dir"
  mv "$mdbook_dir.part" "$mdbook_dir"
  say mdbook "installed in $(since "$start")"
}

mdbook_env() { [[ ! -d $mdbook_dir ]] || export_line POSTRIDER_MDBOOK "$mdbook_dir/bin/mdbook"; }
