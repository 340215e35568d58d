# One RabbitMQ node in one folder; used for the shared broker (rabbitmq.sh) and for tests' own nodes (rabbitmq-node).
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

node_main=$data/rabbitmq
node_name=postrider@localhost # epmd distinguishes node names; each node has its own epmd, or that of the node it joined
node_joins='' # the folder of the node whose cluster it joined

# Prints the folder of RabbitMQ's own scripts. Debian's commands on PATH are wrappers that switch to the user
# `rabbitmq`, who cannot write here; the scripts that they call are in this folder.
rabbitmq_scripts() {
  local found
  found=$(command -v rabbitmq-server) || return 1
  if [[ $found == /usr/sbin/* && -x /usr/lib/rabbitmq/bin/rabbitmq-server ]]; then
    echo /usr/lib/rabbitmq/bin
  else
    dirname "$(readlink -f "$found")"
  fi
}

# Points the helpers in common.sh at this node. Only the shared node keeps pid and log in the common folders.
node_open() { # node_open DIR
  node_dir=$1
  [[ $node_dir == "$node_main" ]] || run=$node_dir logs=$node_dir
  if [[ -e $node_dir/ports ]]; then
    # shellcheck disable=SC1091 # written by node_configure
    source "$node_dir/ports"
    node_environment
  fi
}

rabbitmq_where() { echo "port $node_port, log $logs/rabbitmq.log"; }

free_port() {
  local port
  while port=$((20000 + RANDOM % 12000)) && listening "$port"; do :; done
  echo "$port"
}

node_configure() { # node_configure PORT [MANAGEMENT_PORT]; NODE_DIST_PORT and NODE_EPMD_PORT may choose those two
  node_port=$1 node_management_port=${2:-}
  node_dist_port=${NODE_DIST_PORT:-${node_dist_port:-$(free_port)}}
  node_epmd_port=${NODE_EPMD_PORT:-${node_epmd_port:-$(free_port)}}
  {
    echo "node_port=$node_port node_management_port=$node_management_port"
    echo "node_dist_port=$node_dist_port node_epmd_port=$node_epmd_port"
    echo "node_name=$node_name node_joins=$node_joins"
  } >"$node_dir/ports"
  node_environment

  : >"$node_dir/rabbitmq-env.conf" # in place of the machine's
  {
    echo "listeners.tcp.1 = 127.0.0.1:$node_port"
    # Far above what tests need, far below the machine's memory. The default is 40 % of memory.
    echo "vm_memory_high_watermark.absolute = 2GB"
    echo "log.console.level = info"
    if [[ -n $node_management_port ]]; then
      echo "management.tcp.ip = 127.0.0.1"
      echo "management.tcp.port = $node_management_port"
    fi
    [[ ! -e $node_dir/extra.conf ]] || cat "$node_dir/extra.conf"
  } >"$node_dir/rabbitmq.conf"
  if [[ -n $node_management_port ]]; then
    echo '[rabbitmq_management].' >"$node_dir/enabled_plugins"
  else
    echo '[].' >"$node_dir/enabled_plugins"
  fi
}

# Sets `in_node`, the prefix that runs a command with the node's environment, and nothing of the machine's.
node_environment() {
  local loopback='-kernel inet_dist_use_interface {127,0,0,1}'
  in_node=(env HOME="$node_dir"
    ERL_EPMD_PORT="$node_epmd_port"
    ERL_EPMD_ADDRESS=127.0.0.1
    RABBITMQ_NODENAME="$node_name"
    RABBITMQ_DIST_PORT="$node_dist_port"
    RABBITMQ_CONF_ENV_FILE="$node_dir/rabbitmq-env.conf"
    RABBITMQ_CONFIG_FILE="$node_dir/rabbitmq.conf"
    RABBITMQ_ADVANCED_CONFIG_FILE="$node_dir/advanced.config"
    RABBITMQ_ENABLED_PLUGINS_FILE="$node_dir/enabled_plugins"
    RABBITMQ_MNESIA_BASE="$node_dir/mnesia"
    RABBITMQ_LOG_BASE="$node_dir"
    RABBITMQ_LOGS=-
    RABBITMQ_SCHEMA_DIR="$node_dir/schema"
    RABBITMQ_GENERATED_CONFIG_DIR="$node_dir/generated"
    ERL_CRASH_DUMP="$node_dir/erl_crash.dump"
    RABBITMQ_SCHEDULER_BIND_TYPE=u
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="$loopback"
    RABBITMQ_CTL_ERL_ARGS="$loopback"
    RABBITMQ_CTL_DIST_PORT_MIN=20000 RABBITMQ_CTL_DIST_PORT_MAX=32000)
}

# A broker that has booted answers the protocol header with a method frame, whose first byte is 1.
node_ready() {
  local first=''
  {
    printf 'AMQP\0\0\011\001' >&5
    LC_ALL=C read -r -n 1 -t 2 first <&5 || true
  } 5<>"/dev/tcp/127.0.0.1/$node_port"
  [[ $first == $'\001' ]]
} 2>/dev/null

node_start() { # node_start PORT [MANAGEMENT_PORT]
  if [[ -n ${node_port:-} ]] && running_already rabbitmq node_ready; then return; fi
  local start scripts
  start=$(now_ms)
  scripts=$(rabbitmq_scripts) || die rabbitmq "not installed; run: scripts/services.sh install rabbitmq"
  need_port rabbitmq "$1" "${NODE_PORT_ADVICE:-argument PORT}"
  [[ -z ${2:-} ]] || need_port rabbitmq "$2" "${NODE_MANAGEMENT_PORT_ADVICE:-argument MANAGEMENT_PORT}"
  node_configure "$@"
  need_port rabbitmq "$node_dist_port" POSTRIDER_RABBITMQ_DIST_PORT=…
  [[ -n $node_joins ]] || need_port rabbitmq "$node_epmd_port" POSTRIDER_RABBITMQ_EPMD_PORT=…
  say rabbitmq "starting…"
  launch rabbitmq "${in_node[@]}" "$scripts/rabbitmq-server"
  await_ready rabbitmq 120 node_ready
  say rabbitmq "ready in $(since "$start"), $(rabbitmq_where)"
}

# Starts a new node and adds it to the cluster of another one, which must run.
node_join() { # node_join PORT FIRST_DIR
  node_name=postrider-$1@localhost node_joins=$2
  # shellcheck disable=SC1091 # written by node_configure
  node_epmd_port=$(source "$node_joins/ports" && echo "$node_epmd_port")
  install -m 400 "$node_joins/.erlang.cookie" "$node_dir/.erlang.cookie"
  node_start "$1"
  node_ctl stop_app
  # shellcheck disable=SC1091
  node_ctl join_cluster "$(source "$node_joins/ports" && echo "$node_name")"
  node_ctl start_app
}

node_kill() {
  kill_members rabbitmq
  rm -f "$run/rabbitmq.pid"
}

node_signal() { # node_signal SIGNAL
  local pids
  pids=$(members_of rabbitmq)
  # shellcheck disable=SC2086 # one id per word
  [[ -z $pids ]] || kill "-$1" $pids
}

node_stop() {
  node_signal CONT # else a frozen node could not hear
  stop_processes rabbitmq 30
}

# Without this check rabbitmqctl would start an epmd that is never stopped.
node_ctl() {
  leader_of rabbitmq >/dev/null || die rabbitmq "the node in $node_dir is not running"
  "${in_node[@]}" "$(rabbitmq_scripts)/rabbitmqctl" "$@"
}
