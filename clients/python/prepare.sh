# Sourced by the scripts here: a Python with the packages that the tests need.
# shellcheck shell=bash

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/services/common.sh"
# shellcheck source=scripts/services/python.sh
source "$repo/scripts/services/python.sh"
cd "$repo/clients/python"

if [[ -n ${POSTRIDER_TEST_PYTHON3:-} ]]; then
  python3() { "$POSTRIDER_TEST_PYTHON3" "$@"; }
  export -f python3
fi

requirements=$PWD/requirements/test.txt
# Named by the pins, so that new ones make a new folder.
installed=$cache/python-client-$(sha256sum "$requirements" | cut -c 1-12)
install() {
  [[ -x $installed/python ]] || install_python python-client "$requirements" "$installed" \
    'import build, confluent_kafka, flit_core, jsonschema, mypy, opentelemetry.sdk, pika, pymongo, pytest'
}
# Several scripts may run at once.
(flock 8 && install) 8<"$requirements"
