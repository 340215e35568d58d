#!/usr/bin/env bash
# `make chaos`: histories of several processes between real servers, each with the faults that its seed decides
# (tests/chaos). The exit code is 1 if one breaks the promise; its seed, plan and logs are then named.
#
#   SEEDS=10       how many histories, of random seeds; or a file as tests/chaos/seeds, whose histories are run again
#   SEED=…         this one alone. The plan is the same to the millisecond; the course is real and differs
#   KIND=mixed     with SEEDS=n or SEED: mixed (two brokers, sick destinations, odd records, operators, appends), single
#                  (one broker), or both in turn
#   DURATION=15    with SEEDS=n or SEED: seconds of producers and faults; start, healing and verdict are extra
#   JOBS=1         how many histories run at a time, each in a process with servers and folders of its own
#   RESULTS=FILE   adds a line for each verdict: seed, kind, duration, verdict, commit, date, time taken, CPU time

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
cd "$repo"

jobs=${JOBS:-1} kind=${KIND:-mixed} seconds=${DURATION:-15} seeds=${SEEDS:-10}
[[ $jobs =~ ^[1-9][0-9]*$ ]] || die chaos "JOBS=$jobs: must be a number"
[[ $kind =~ ^(mixed|single|both)$ ]] || die chaos "KIND=$kind: must be mixed, single or both"
[[ $seconds =~ ^[1-9][0-9]*$ ]] || die chaos "DURATION=$seconds: must be a number of seconds"

export CHAOS_LOGS=$logs/chaos
mkdir -p "$CHAOS_LOGS"
folder=$(mktemp -d "$CHAOS_LOGS/run-XXXXXX")

random_seed() { echo $(((RANDOM << 30 | RANDOM << 15 | RANDOM) & 0xffffffff)); }
kind_of() { # kind_of N
  case $kind in
    both) if (($1 % 2)); then echo single; else echo mixed; fi ;;
    *) echo "$kind" ;;
  esac
}
if [[ -n ${SEED:-} ]]; then
  [[ $kind != both ]] || die chaos "KIND=both: needs SEEDS=n"
  echo "$SEED $kind $seconds" >"$folder/list"
elif [[ -f $seeds ]]; then
  # Seed, kind and duration; what follows is an earlier verdict.
  sed -E '/^[[:space:]]*(#|$)/d' "$seeds" | awk '{ print $1, $2, $3 }' >"$folder/list"
elif [[ $seeds =~ ^[1-9][0-9]*$ ]]; then
  for ((n = 0; n < seeds; n++)); do echo "$(random_seed) $(kind_of "$n") $seconds"; done >"$folder/list"
else
  die chaos "SEEDS=$seeds: must be a number or a file"
fi
for ((job = 0; job < jobs; job++)); do
  awk -v job="$job" -v jobs="$jobs" 'NR % jobs == job' "$folder/list" >"$folder/list-$job"
done

# Each history has servers of its own: no shared ones need to run.
"$repo/scripts/services.sh" install mongodb rabbitmq kafka faketime toolchain
eval "$("$repo/scripts/services.sh" env)"

say chaos "building…"
cargo test --workspace --features failpoints --test chaos --no-run

start=$(now_ms)
CHAOS_RESULTS=$(realpath -m "${RESULTS:-$folder/results}")
export CHAOS_RESULTS
touch "$CHAOS_RESULTS"
before=$(wc -l <"$CHAOS_RESULTS")
CHAOS_COMMIT="$(git -C "$repo" rev-parse --short HEAD 2>/dev/null || echo -) $(date +%F)"
export CHAOS_COMMIT

pids=()
for ((job = 0; job < jobs; job++)); do
  CHAOS_LIST=$folder/list-$job CHAOS_JOB=$$-$job \
    cargo test --quiet --workspace --features failpoints --test chaos -- --ignored --nocapture every_history &
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done

tail -n +$((before + 1)) "$CHAOS_RESULTS" >"$folder/verdicts"
kept=$(awk '$4 == "kept"' "$folder/verdicts" | wc -l)
all=$(wc -l <"$folder/list")
say chaos "$kept of $all histories kept the promise, $(since "$start") in total; verdicts: $CHAOS_RESULTS"
awk '$4 != "kept" { print "  " $0 }' "$folder/verdicts" >&2
((failed == 0 && kept == all))
