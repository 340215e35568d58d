#!/usr/bin/env bash
# The real servers that tests, benches and the demo need, without Docker (with Docker: `docker compose up`).
#
#   scripts/services.sh install [NAME…]   fetch what is missing; as root also by apt-get
#   scripts/services.sh packages [NAME…]  only the part of it that is done by apt-get
#   scripts/services.sh start   [NAME…]   install, start, and wait until ready; fine if running already
#   scripts/services.sh stop    [NAME…]   stop; data and downloads stay. Without names also tests' forgotten servers
#   scripts/services.sh status  [NAME…]   one line each; exit 0 if all run
#   scripts/services.sh env     [NAME…]   print exports for tests: eval "$(scripts/services.sh env)"
#   scripts/services.sh clean   [NAME…]   remove the data of stopped servers
#   scripts/services.sh rabbitmq-node …   a node of a test's own, see scripts/services/rabbitmq-node
#
# Names: mongodb mongodb-auth rabbitmq kafka prometheus (servers), mongosh python schemathesis openapi faketime toolchain
# helm node go java (only installed); deny mdbook typos (for `make lint`, only by their names).
# Without names: all but those.
#
# Everything lies under .services/ (or POSTRIDER_SERVICES_DIR), except Debian packages. Versions and ports are pinned in
# scripts/versions.env; a variable of the same name in the environment wins.

# shellcheck source-path=SCRIPTDIR
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=services/common.sh
source "$here/services/common.sh"

servers=(mongodb mongodb-auth rabbitmq kafka prometheus)
tools=(mongosh python schemathesis openapi faketime toolchain helm node go java)
by_name=(deny mdbook typos)

# shellcheck source=services/wheel.sh
source "$here/services/wheel.sh"
# shellcheck source=services/packages.sh
source "$here/services/packages.sh"
for name in "${servers[@]}" "${tools[@]}" "${by_name[@]}"; do
  # shellcheck disable=SC1090 # one file per name
  source "$here/services/$name.sh"
done

usage() {
  sed -n '/^#/!q; s/^# \?//p' <(tail -n +2 "${BASH_SOURCE[0]}") >&2
  exit 2
}

export_line() { [[ -z $2 ]] || printf 'export %s=%q\n' "$1" "$2"; }
is_server() { [[ " ${servers[*]} " == *" $1 "* ]]; }

# One run at a time may start or stop.
lock() {
  exec 9>"$run/lock"
  flock --nonblock 9 && return
  say services "waiting for another services.sh to end…"
  flock 9
}

# Installs one name: a second process that wants the same one waits.
install_one() { (flock 8 && "${1}_install") 8>"$run/install-$1.lock"; }
start_one() { "${1}_start"; }
stop_one() { "${1}_stop"; }

# Does ACT for all names at once; fails if one of them fails.
all_at_once() { # all_at_once ACT NAME…
  local act=$1 name pid pids=() failed=0
  shift
  for name in "$@"; do
    "$act" "$name" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  return "$failed"
}

do_packages() {
  local name packages=()
  mapfile -t packages < <(for name in "$@"; do "${name}_packages" | tr ' ' '\n'; done | sort -u)
  install_packages "${packages[@]}"
}

do_install() {
  do_packages "$@"
  all_at_once install_one "$@"
}

do_start() {
  do_install "$@"
  all_at_once start_one "${chosen_servers[@]}"
}

do_stop() {
  all_at_once stop_one "${chosen_servers[@]}"
  [[ $all == yes ]] || return 0
  if [[ -n $(pids_marked "$(mark_of_all)") ]]; then
    warn services "killing servers that a test started and left"
    kill_marked "$(mark_of_all)"
  fi
}

do_status() {
  local name missing=0
  for name in "${chosen_servers[@]}"; do
    if leader_of "$name" >/dev/null && "${name}_ready"; then
      printf '%-11s running, %s\n' "$name" "$("${name}_where")"
    else
      printf '%-11s stopped\n' "$name"
      missing=1
    fi
  done
  return "$missing"
}

do_env() {
  local name
  export_line POSTRIDER_SERVICES_DIR "$services_dir"
  for name in "$@"; do
    if declare -F "${name}_env" >/dev/null; then "${name}_env"; fi
  done
}

do_clean() {
  local name
  for name in "${chosen_servers[@]}"; do
    leader_of "$name" >/dev/null && die "$name" "is running; stop it first: scripts/services.sh stop $name"
    "${name}_clean"
  done
}

(($# >= 1)) || usage
command=$1
shift
[[ $command != rabbitmq-node ]] || exec "$here/services/rabbitmq-node" "$@"

all=no
if (($# == 0)); then
  all=yes
  set -- "${servers[@]}" "${tools[@]}"
fi
chosen_servers=()
for name in "$@"; do
  declare -F "${name}_install" >/dev/null || die services "unknown name: $name; the names are: ${servers[*]} ${tools[*]} ${by_name[*]}"
  if is_server "$name"; then chosen_servers+=("$name"); fi
done

case $command in
  start | stop | clean)
    lock
    "do_$command" "$@"
    ;;
  install | packages | status | env) "do_$command" "$@" ;;
  *) usage ;;
esac
