# RabbitMQ: one node with the management plugin, shared by all tests (a vhost each).
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders
# shellcheck source=scripts/services/rabbitmq-lib.sh
source "$repo/scripts/services/rabbitmq-lib.sh"

rabbitmq_packages() { rabbitmq_scripts >/dev/null || echo rabbitmq-server; }

rabbitmq_install() {
  rabbitmq_scripts >/dev/null || die rabbitmq "no rabbitmq-server on PATH; install the package rabbitmq-server"
}

rabbitmq_start() {
  mkdir -p "$node_main"
  node_open "$node_main"
  NODE_DIST_PORT=$POSTRIDER_RABBITMQ_DIST_PORT NODE_EPMD_PORT=$POSTRIDER_RABBITMQ_EPMD_PORT \
    NODE_PORT_ADVICE=POSTRIDER_RABBITMQ_PORT=… \
    NODE_MANAGEMENT_PORT_ADVICE=POSTRIDER_RABBITMQ_MANAGEMENT_PORT=… \
    node_start "$POSTRIDER_RABBITMQ_PORT" "$POSTRIDER_RABBITMQ_MANAGEMENT_PORT"
}

rabbitmq_ready() { node_open "$node_main" && [[ -n ${node_port:-} ]] && node_ready; }

rabbitmq_stop() {
  node_open "$node_main"
  node_stop
}

rabbitmq_clean() { rm -rf "$node_main"; }

rabbitmq_env() {
  export_line POSTRIDER_TEST_AMQP_URI "amqp://guest:guest@127.0.0.1:$POSTRIDER_RABBITMQ_PORT/%2f"
  export_line POSTRIDER_TEST_RABBITMQ_API "http://127.0.0.1:$POSTRIDER_RABBITMQ_MANAGEMENT_PORT"
  export_line POSTRIDER_TEST_RABBITMQCTL "$repo/scripts/services/rabbitmqctl"
  export_line POSTRIDER_TEST_RABBITMQ_NODE "$repo/scripts/services/rabbitmq-node"
}
