# A Python with the packages of python/requirements.txt: only installed, for tests that ask another implementation.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

python_requirements=$repo/scripts/services/python/requirements.txt
# Named by the pins, so that new ones make a new folder.
python_dir=$cache/python-$(sha256sum "$python_requirements" | cut -c 1-12)

# Prints the command that runs it.
python_binary() { [[ -x $python_dir/python ]] && echo "$python_dir/python"; }

python_packages() { python_binary >/dev/null || wheel_packages; }

python_install() {
  python_binary >/dev/null && return
  install_python python "$python_requirements" "$python_dir" \
    'import bson.json_util, pymongo, cloudevents.core.bindings.rabbitmq, pika, confluent_kafka'
}

# Packages in a folder of their own, not a venv: Debian's python3 lacks a part of venv; this needs only pip.
install_python() { # install_python NAME REQUIREMENTS FOLDER PROBE
  local name=$1 requirements=$2 folder=$3 probe=$4
  local start part=$folder.part log=$logs/install-$name.log
  start=$(now_ms)
  python3 -c "import sys; sys.exit(sys.version_info < (${PYTHON_MINIMUM/./, }))" ||
    die "$name" "python3 is $(python3 --version); Python $PYTHON_MINIMUM or newer is needed"
  say "$name" "fetching its packages…"
  rm -rf "$part" && mkdir -p "$part"
  quietly "$name" "$log" python3 -m pip install --target "$part/packages" --no-deps --require-hashes --no-cache-dir \
    --only-binary=:all: --requirement "$requirements" ||
    die "$name" "the packages could not be fetched; pip must reach its index"
  # Names its Python, and ignores that Python's other packages.
  # shellcheck disable=SC2016 # for the script to expand
  printf '#!/bin/sh\nPYTHONPATH="$(dirname "$0")/packages" exec %q -S "$@"\n' \
    "$(python3 -c 'import sys; print(sys.executable)')" >"$part/python"
  chmod +x "$part/python"
  "$part/python" -c "$probe" 2>"$log" || die "$name" "the packages do not run here: $(tail -n 1 "$log")"
  rm -rf "$folder" && mv "$part" "$folder"
  say "$name" "installed in $(since "$start")"
}

python_env() { export_line POSTRIDER_TEST_PYTHON "$(python_binary || true)"; }
