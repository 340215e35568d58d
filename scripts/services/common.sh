# Sourced by every script here: folders, versions, messages, and the life of one background server.
# shellcheck shell=bash

set -euo pipefail

((BASH_VERSINFO[0] >= 5)) || { echo "bash 5 or newer is needed, this is $BASH_VERSION" >&2; exit 1; }
[[ -r /proc/self/environ ]] || { echo "these scripts need Linux; elsewhere use: docker compose up" >&2; exit 1; }

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PATH=$PATH:/usr/sbin:/sbin # where Debian puts servers, and where only root looks

# Everything that is downloaded or written is in this one ignored folder.
services_dir=${POSTRIDER_SERVICES_DIR:-$repo/.services}
mkdir -p "$services_dir"
services_dir=$(cd "$services_dir" && pwd)
cache=$services_dir/cache # downloads; never removed by us
data=$services_dir/data   # what the servers store; `clean` removes it
logs=$services_dir/logs
run=$services_dir/run # process ids and locks
mkdir -p "$cache" "$data" "$logs" "$run"

# Reads the pins; variables of the environment win.
load_versions() {
  local key value
  while IFS='=' read -r key value; do
    [[ $key =~ ^[A-Z][A-Z0-9_]*$ ]] || continue
    [[ -v $key ]] || printf -v "$key" '%s' "$value"
  done <"$repo/scripts/versions.env"
}
load_versions

# --- messages ---------------------------------------------------------------------------------------------------------
# Progress goes to stderr, so that stdout stays clean for `env`.

say() { printf '%-11s %s\n' "$1" "$2" >&2; }
warn() { printf '%-11s warning: %s\n' "$1" "$2" >&2; }
die() {
  printf '%-11s error: %s\n' "$1" "$2" >&2
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

now_ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); } # the locale chooses point or comma
since() { # since START_MS -> "2.1 s"
  local ms=$(($(now_ms) - $1))
  printf '%d.%d s' $((ms / 1000)) $((ms % 1000 / 100))
}

# Runs a long step quietly: its output goes to a log, whose tail is printed when the step fails.
quietly() { # quietly NAME LOG COMMAND…
  local name=$1 log=$2
  shift 2
  "$@" >"$log" 2>&1 </dev/null && return
  {
    printf '%-11s error: failed: %s\n' "$name" "$*"
    show_tail "$log"
  } >&2
  return 1
}

# A mongod that aborts logs each stack frame as a long line: of no use here.
show_tail() { # show_tail LOG
  { grep -vE '"msg":"(BACKTRACE|Frame)"' "$1" || true; } | tail -n 25 | cut -c 1-400 | sed 's/^/  | /'
  echo "  full log: $1"
}

# Whether version $1 is at least $2.
version_at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# --- the life of one server -------------------------------------------------------------------------------------------
# A server is known by the id of its first process, and every process it forks carries two marks in its environment: which
# server it belongs to, and which services folder. So a stale pid file never makes us signal a stranger, and processes
# whose pid file is lost are still found.

mark_of() { echo "POSTRIDER_SERVICE=$run/$1"; }
mark_of_all() { echo "POSTRIDER_SERVICE_OF=$services_dir"; }

marked() { grep -qzxF -- "$(mark_of "$1")" "/proc/$2/environ" 2>/dev/null; }
pids_marked() { { grep -lzxF -- "$1" /proc/[0-9]*/environ 2>/dev/null || true; } | cut -d/ -f3; }

# Prints the id of the server's first process, or fails if it does not run.
leader_of() {
  local pid
  pid=$(cat "$run/$1.pid" 2>/dev/null) && [[ -n $pid ]] && marked "$1" "$pid" && echo "$pid"
}

# Prints the ids of all its processes.
members_of() { pids_marked "$(mark_of "$1")"; }

# Whether GET answers 200.
http_ok() { # http_ok PORT PATH
  local status=''
  {
    printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&6
    read -r -t 2 status <&6 || true
  } 6<>"/dev/tcp/127.0.0.1/$1"
  [[ $status == *' 200 '* ]]
} 2>/dev/null

# Whether a process listens on this port of the loopback interface.
listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Fails with advice if another process uses the port.
need_port() { # need_port NAME PORT ADVICE
  listening "$2" || return 0
  local holder=''
  have ss && holder=$(ss -Hltnp "sport = :$2" 2>/dev/null | sed -n 's/.*users:((\(.*\)))$/ by \1/p' | head -n 1)
  die "$1" "port $2 is already taken$holder; stop that process, or choose another port: $3"
}

# Starts a server in the background; if it dies, this script reports it, not bash.
launch() { # launch NAME COMMAND…
  launch_job "$@"
  disown $!
}

# The same for a process whose exit code the caller waits for. It runs in a session of its own, so that Ctrl-C in this
# terminal does not reach it, and in the run folder, for core dumps.
launch_job() { # launch_job NAME COMMAND…
  local name=$1
  shift
  local log=$logs/$name.log
  [[ ! -e $log ]] || mv -f "$log" "$log.1"
  env --chdir="$run" "$(mark_of "$name")" "$(mark_of_all)" setsid "$@" >"$log" 2>&1 </dev/null 9>&- &
  echo $! >"$run/$name.pid"
}

# Waits until a probe succeeds; shows the log's tail if the server ends or is too slow.
await_ready() { # await_ready NAME SECONDS PROBE…
  local name=$1 seconds=$2
  shift 2
  local deadline=$(($(now_ms) + seconds * 1000)) why pid
  pid=$(cat "$run/$name.pid")
  until "$@"; do
    if ! kill -0 "$pid" 2>/dev/null; then
      why='ended before it was ready'
    elif (($(now_ms) > deadline)); then
      why="was not ready after $seconds s"
    else
      sleep 0.1
      continue
    fi
    kill_members "$name"
    {
      printf '%-11s error: %s\n' "$name" "it $why; the end of its log:"
      show_tail "$logs/$name.log"
      [[ ! -d $data/$name ]] || echo "  if its data is damaged, remove it: scripts/services.sh clean $name"
    } >&2
    return 1
  done
}

# Whether a process has not ended yet, even if it is about to; a zombie has ended.
still_there() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) && [[ ${stat##*) } != [ZX]* ]]
}

# Sends SIGTERM to the server, then kills it and all processes that it left behind.
stop_processes() { # stop_processes NAME SECONDS
  local name=$1 seconds=$2 pid start
  start=$(now_ms)
  if pid=$(leader_of "$name"); then
    kill -TERM "$pid" 2>/dev/null || true
    local deadline=$((start + seconds * 1000))
    while marked "$name" "$pid" && (($(now_ms) < deadline)); do sleep 0.1; done
    if marked "$name" "$pid"; then warn "$name" "did not stop within $seconds s, killing it"; fi
  fi
  kill_members "$name"
  # A process that exits loses its memory, and the mark with it, some time before its ports.
  while [[ -n $pid ]] && still_there "$pid" && (($(now_ms) < start + seconds * 1000)); do sleep 0.05; done
  rm -f "$run/$name.pid"
  [[ -z $pid ]] || say "$name" "stopped in $(since "$start")"
}

kill_members() { kill_marked "$(mark_of "$1")"; }
kill_marked() {
  local pids
  while pids=$(pids_marked "$1") && [[ -n $pids ]]; do
    # shellcheck disable=SC2086 # one id per word
    kill -KILL $pids 2>/dev/null || true
    sleep 0.05
  done
}

# The beginning of every start: nothing to do if the server runs; leftovers of a killed run are removed first.
running_already() { # running_already NAME PROBE…
  local name=$1
  shift
  if leader_of "$name" >/dev/null && "$@"; then
    say "$name" "already running, $("${name}_where")"
    return 0
  fi
  if [[ -n $(members_of "$name") ]]; then
    warn "$name" "found leftovers of an earlier run, killing them"
    kill_members "$name"
  fi
  return 1
}
