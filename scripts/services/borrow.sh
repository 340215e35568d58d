# For test.sh, bench.sh and demo.sh: has servers running while a script runs, and afterwards leaves things as they were.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

services=$repo/scripts/services.sh
borrowed=()

# Starts the servers that do not run yet, on empty data, and exports the environment for tests. When the script ends,
# however it ends, stops those that it started, unless KEEP_SERVICES=1.
borrow_services() { # borrow_services NAME…
  local name
  for name in "$@"; do
    "$services" status "$name" >/dev/null || borrowed+=("$name")
  done
  trap return_services EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  if ((${#borrowed[@]} > 0)); then
    "$services" clean "${borrowed[@]}"
    "$services" start "${borrowed[@]}"
  else
    say services "using those already running: $*"
  fi
  eval "$("$services" env)"
}

return_services() {
  local result=$?
  trap - EXIT
  trap '' INT TERM # a second Ctrl-C must not leave servers behind
  if declare -F before_return >/dev/null; then before_return || result=$?; fi
  if ((${#borrowed[@]} == 0)); then
    say services "left running, as found"
  elif [[ ${KEEP_SERVICES:-} == 1 ]]; then
    say services "left running (KEEP_SERVICES=1); to stop them: make services-stop"
  elif ((${#borrowed[@]} == 5)); then
    "$services" stop # all: also what tests have left
  else
    "$services" stop "${borrowed[@]}"
  fi
  exit "$result"
}
