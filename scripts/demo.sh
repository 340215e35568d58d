#!/usr/bin/env bash
# `make demo`: watch records go from MongoDB to RabbitMQ. Starts both servers, builds, runs the relay in the background
# and the demo (examples/demo: a producer and a consumer) in front; when the demo ends, stops what it started.
#
#   DEMO=forever make demo    runs on until Ctrl-C
#
# The relay reads config/demo.toml; its `mongo.uri`, `sinks.rabbitmq.uri` and `ops.listen` are set here, to match the
# servers just started and the port in scripts/versions.env.
# The demo finds the same servers in POSTRIDER_TEST_MONGODB_URI and POSTRIDER_TEST_AMQP_URI.

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
# shellcheck source=scripts/services/borrow.sh
source "$repo/scripts/services/borrow.sh"
cd "$repo"

relay=postrider-demo
relay_log=$logs/$relay.log

# Ends the relay as an orchestrator would, and checks its promise: SIGTERM, then exit code 0. Runs before the servers
# stop, since the relay still settles what is in flight.
before_return() {
  local pid result=0
  pid=$(cat "$run/$relay.pid" 2>/dev/null) || return 0
  say relay "stopping (SIGTERM)…"
  kill -TERM "$pid" 2>/dev/null || true
  local deadline=$(($(now_ms) + 40000)) # longer than its own shutdown_timeout of 25 s
  while kill -0 "$pid" 2>/dev/null && (($(now_ms) < deadline)); do sleep 0.1; done
  kill_members "$relay"
  wait "$pid" || result=$?
  rm -f "$run/$relay.pid"
  if ((result == 0)); then
    say relay "ended with exit code 0"
  else
    warn relay "ended with exit code $result; the end of its log:"
    show_tail "$relay_log" >&2
    return "$result"
  fi
}

"$services" install toolchain
# Downloads while it compiles.
"$services" install mongodb rabbitmq &
say demo "building; the first time takes some minutes…"
cargo build --profile demo --no-default-features --features postrider/rabbitmq --package postrider --package postrider-demo --bins
wait $!

borrow_services mongodb rabbitmq

need_port relay "$POSTRIDER_DEMO_OPS_PORT" POSTRIDER_DEMO_OPS_PORT=…
say relay "starting, log $relay_log"
launch_job "$relay" "$repo/target/demo/postrider" run --config "$repo/config/demo.toml" \
  --set "mongo.uri=$POSTRIDER_TEST_MONGODB_URI" --set "sinks.rabbitmq.uri=$POSTRIDER_TEST_AMQP_URI" \
  --set "ops.listen=127.0.0.1:$POSTRIDER_DEMO_OPS_PORT"
if ! await_ready "$relay" 60 http_ok "$POSTRIDER_DEMO_OPS_PORT" /readyz; then
  rm -f "$run/$relay.pid"
  exit 1
fi
say relay "ready; http://127.0.0.1:$POSTRIDER_DEMO_OPS_PORT/metrics shows what it does"

# Not `exec`: afterwards this script stops the relay and the servers.
DEMO=${DEMO:-} target/demo/postrider-demo
