#!/usr/bin/env bash
# Every check of the Python client library: format, lint, types, tests against real servers, the built packages.
#
#   clients/python/test.sh [ARG…]    ARGs go to pytest, as in: test.sh -k kafka; then nothing but the tests is run
#
# Environment: POSTRIDER_TEST_MONGODB_URI, POSTRIDER_TEST_AMQP_URI, POSTRIDER_TEST_KAFKA_BROKERS, POSTRIDER_TEST_MONGOD
# (scripts/services.sh env), POSTRIDER_BIN (the built daemon), POSTRIDER_TEST_PYTHON3 (else python3).

# shellcheck source=clients/python/prepare.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare.sh"
python() { "$installed/python" "$@"; }

# What the tools write stays out of the sources.
export PYTHONDONTWRITEBYTECODE=1 RUFF_CACHE_DIR=$cache/python-client-ruff MYPY_CACHE_DIR=$cache/python-client-mypy

if (($# == 0)); then
  say python "format, lint, types…"
  python -m ruff format --check --quiet
  python -m ruff check --quiet
  python -m mypy --no-error-summary
fi
say python "tests…"
python -m pytest -q -p no:cacheprovider "$@"
if (($# == 0)); then
  say python "packages…"
  ./check-package.sh "$installed/python"
fi
