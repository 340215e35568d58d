#!/usr/bin/env bash
# Runs an example: clients/python/example.sh producer|consumer-rabbitmq|consumer-kafka|consumer-versions

# shellcheck source=clients/python/prepare.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare.sh"
PYTHONPATH=$repo/clients/python/src:$installed/packages exec python3 -S -u "examples/${1//-/_}.py"
