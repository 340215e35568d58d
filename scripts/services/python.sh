# A Python with the packages of python/requirements.txt: only installed, for tests that ask another implementation.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

python_requirements=$repo/scripts/services/python/requirements.txt
# Named by the pins, so that new ones make a new folder.
python_dir=$cache/python-$(sha256sum "$python_requirements" | cut -c 1-12)

# Prints the command that runs it.
python_binary() { [[ -x $python_dir/python ]] && echo "$python_dir/python"; }

python_packages() { python_binary >/dev/null || wheel_packages; }

# Packages in a folder of their own, not a venv: for that Debian's python3 lacks a part; this needs no more than pip.
python_install() {
  python_binary >/dev/null && return
  local start part=$python_dir.part
  start=$(now_ms)
  python3 -c "import sys; sys.exit(sys.version_info < (${PYTHON_MINIMUM/./, }))" ||
    die python "python3 is $(python3 --version); Python $PYTHON_MINIMUM or newer is needed"
  say python "fetching pymongo and cloudevents…"
  rm -rf "$part" && mkdir -p "$part"
  quietly python "$logs/install-python.log" python3 -m pip install --target "$part/packages" --no-deps \
    --require-hashes --no-cache-dir --only-binary=:all: --requirement "$python_requirements" ||
    die python "the packages could not be fetched; pip must reach its index"
  # Names its Python, and keeps out whatever else that one has.
  # shellcheck disable=SC2016 # for the script to expand
  printf '#!/bin/sh\nPYTHONPATH="$(dirname "$0")/packages" exec %q -S "$@"\n' \
    "$(python3 -c 'import sys; print(sys.executable)')" >"$part/python"
  chmod +x "$part/python"
  "$part/python" -c 'import bson.json_util, pymongo, cloudevents.core.bindings.rabbitmq' 2>"$logs/install-python.log" ||
    die python "the packages do not run here: $(tail -n 1 "$logs/install-python.log")"
  rm -rf "$python_dir" && mv "$part" "$python_dir"
  say python "installed in $(since "$start")"
}

python_env() { export_line POSTRIDER_TEST_PYTHON "$(python_binary || true)"; }
