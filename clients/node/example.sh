#!/usr/bin/env bash
# Runs an example: clients/node/example.sh producer|consumer-rabbitmq|consumer-kafka|consumer-versions

# shellcheck source=clients/node/prepare.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare.sh" >&2
exec node "examples/$1.mjs"
