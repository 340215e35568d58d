#!/usr/bin/env bash
# The tests of the client libraries under clients/, by the tools of their languages, against real servers.
#
#   scripts/clients.sh [LANGUAGE…]    all of them without an argument
#   KEEP_SERVICES=1                   leave the servers running, for a quicker next time
#
# Two at a time: each of them mostly waits. POSTRIDER_BIN is the daemon that they start, by default the one that
# `cargo build` makes.

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
# shellcheck source=scripts/services/borrow.sh
source "$repo/scripts/services/borrow.sh"
cd "$repo"

languages=("$@")
if (($# == 0)); then
  for test in clients/*/test.sh; do languages+=("$(basename "$(dirname "$test")")"); done
fi

export POSTRIDER_BIN=${POSTRIDER_BIN:-${CARGO_TARGET_DIR:-$repo/target}/debug/postrider}
[[ -x $POSTRIDER_BIN ]] || die clients "there is no $POSTRIDER_BIN; run: cargo build"
"$services" install "${languages[@]}"
borrow_services mongodb mongodb-auth rabbitmq kafka

run_language() { # run_language LANGUAGE
  local log=$logs/client-$1.log start
  start=$(now_ms)
  if "clients/$1/test.sh" >"$log" 2>&1 </dev/null; then
    say clients "$1 passed in $(since "$start")"
  else
    show_tail "$log" >&2
    warn clients "$1 failed after $(since "$start"); all of its output: $log"
    return 1
  fi
}

export logs
export -f run_language say warn show_tail now_ms since
printf '%s\n' "${languages[@]}" | xargs -P 2 -I LANGUAGE bash -c 'run_language LANGUAGE' || die clients "not all passed"
say clients "all passed: ${languages[*]}"
