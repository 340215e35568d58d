#!/usr/bin/env bash
# `make mutants`: changes the modules of the protocol one place at a time, and runs the tests that must notice
# (cargo-mutants). A mutant that no test notices is listed as missed; docs/proof-results.md explains those that remain.
#
#   MODULES="plan"     which modules: plan schedule assignment lane (unit tests), worker window lease settle repair transaction
#                      (with real servers); all of them by default
#   SHARD=0/3          of each module every third mutant only, from the first on
#   MUTANTS_DIR=DIR    where the results are written; .services/logs/mutants by default
#   MUTANTS_WORK=DIR   where it works, in a copy of the repository; .services/mutants by default
#   RESUME=1           leave out what the results there say was noticed: for a run that was cut off, of the same tree
#
# A mutant costs a build of the tests, some ten seconds, and their run: half an hour for each module with servers.

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
# shellcheck source=scripts/services/borrow.sh
source "$repo/scripts/services/borrow.sh"
cd "$repo"

modules=${MODULES:-plan schedule assignment lane worker window lease settle repair transaction}
out=${MUTANTS_DIR:-$logs/mutants}

"$services" install toolchain
home=$cache/cargo-mutants-$CARGO_MUTANTS_VERSION
if [[ ! -x $home/bin/cargo-mutants ]]; then
  say mutants "installing cargo-mutants $CARGO_MUTANTS_VERSION; this takes a minute or two…"
  quietly mutants "$logs/install-cargo-mutants.log" \
    cargo install --locked --root "$home" --version "$CARGO_MUTANTS_VERSION" cargo-mutants
fi
PATH=$home/bin:$PATH

# Which files a module is, and which tests must notice a change of it.
declare -A files=(
  [plan]='crates/relay/src/plan.rs'
  [schedule]='crates/relay/src/schedule.rs'
  [lane]='crates/relay/src/lane.rs'
  [worker]='crates/relay/src/lane_worker.rs'
  [window]='crates/relay/src/lane_worker/window.rs'
  [assignment]='crates/relay/src/partition/plan.rs'
  [lease]='crates/outbox/src/lease.rs'
  [settle]='crates/outbox/src/settle.rs'
  [repair]='crates/outbox/src/repair.rs'
  [transaction]='crates/events/src/transaction.rs'
)
declare -A tests=(
  [plan]='--lib'
  [schedule]='--lib'
  [lane]='--lib'
  [worker]='--lib --test=ordering --test=leases --test=sinks --test=partitions'
  [window]='--lib --test=sinks'
  [assignment]='--lib'
  [lease]='--test=ordering --test=leases'
  [settle]='--lib --test=ordering --test=leases'
  [repair]='--lib --test=ordering --test=leases'
  [transaction]='--lib --test=event_store'
)
# The part of their names that the tests have in common.
declare -A named=([plan]=plan [schedule]=schedule [lane]=lane [window]=window [assignment]=plan)
# Tests of tests/ordering and tests/leases that do not check a guard, that measure what the server reads (half of the
# time, for nothing that these modules decide), or that last longer than the time limit below.
not_guards=(--skip delivery:: --skip end_to_end:: --skip history_checker:: --skip read_cost:: --skip no_read_grows
  --skip no_scan_under_load --skip sent_again_before_anything_new)
# For a lane's worker: what is decided before there is one, or elsewhere (records without a message, the owner of a
# partition), and each sink by itself.
not_worker=(--skip malformed --skip of_another_kind --skip dies_alone --skip forbids_the_lease --skip cloud_events:: --skip declare::
  --skip standard_output:: --skip sizes:: --skip both_real_brokers --skip membership:: --skip contract:: --skip kafka::
  --skip rabbitmq:: --skip payloads::)
# For an append's transaction: the other stores.
not_events=(--skip contract:: --skip prepare_keys:: --skip snapshots:: --skip schema:: --skip upserts:: --skip wrong_clock::)

servers=()
for module in $modules; do
  [[ -v files[$module] ]] || die mutants "MODULES: unknown module $module; the modules are: ${!files[*]}"
  [[ ${tests[$module]} != *--test* ]] || servers=(mongodb mongodb-auth rabbitmq kafka)
done
((${#servers[@]} == 0)) || borrow_services "${servers[@]}"

# A copy of the files that git knows, always the same folder: a mutant rebuilds only what it changes, without source
# lines.
# shellcheck disable=SC2154 # services_dir is of common.sh
work=${MUTANTS_WORK:-$services_dir/mutants}
source=$work/source
rm -rf "$source"
mkdir -p "$source"
git ls-files --cached --others --exclude-standard -z | tar --create --null --files-from=- | tar --extract --directory="$source"
cd "$source"
# The last build may be of a mutant of a run that was interrupted: newer than the copy.
read -ra changed <<<"${files[*]}"
touch "${changed[@]}"
export CARGO_TARGET_DIR=$work/target CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=0

# A run that ends at its first failure leaves processes that its tests started: they end with it.
mkdir -p "$work"
cat >"$work/runner" <<'EOF'
#!/usr/bin/env bash
set -m
"$@" &
group=$!
wait "$group"
code=$?
kill -KILL -- "-$group" 2>/dev/null
# Without its servers each test fails, and each mutant would count as noticed.
if ((code != 0)) && [[ -n $MUTANTS_SERVERS ]] && ! "$MUTANTS_SERVICES" status $MUTANTS_SERVERS >/dev/null; then
  touch "$MUTANTS_LOST"
  pkill -x cargo-mutants
fi
exit "$code"
EOF
chmod +x "$work/runner"
export MUTANTS_SERVERS=${servers[*]} MUTANTS_SERVICES=$services MUTANTS_LOST=$work/lost
rm -f "$MUTANTS_LOST"
target=$(rustc -vV | sed -n 's/^host: //p')
target=${target//-/_}
export "CARGO_TARGET_${target^^}_RUNNER=$work/runner"

# The first failure ends a test run. Tests mostly wait.
export POSTRIDER_TEST_PATIENCE=10 RUST_TEST_THREADS=8

failed=0
for module in $modules; do
  start=$(now_ms)
  say mutants "$module (${files[$module]})…"
  mkdir -p "$out/$module"
  # For both, build and run: otherwise each mutant would build all tests.
  read -ra chosen <<<"${tests[$module]}"
  filter=("${named[$module]:-}")
  skipped=()
  [[ ${tests[$module]} != *--test=ordering* ]] || skipped+=("${not_guards[@]}")
  case $module in
    worker) skipped+=("${not_worker[@]}") ;;
    transaction) skipped+=("${not_events[@]}") ;;
    lease | settle | repair) skipped+=(--skip bad_input::) ;;
  esac
  ((${#skipped[@]} == 0)) || filter+=(-- "${skipped[@]}")
  read -ra changed <<<"${files[$module]}"
  cargo mutants --in-place "${changed[@]/#/--file=}" --features failpoints --test-workspace true --output "$out/$module" --no-shuffle ${RESUME:+--iterate} \
    ${SHARD:+--shard "$SHARD" --sharding round-robin} \
    --minimum-test-timeout 120 --colors never "${chosen[@]/#/--cargo-arg=}" -- "${filter[@]}" || failed=1
  [[ ! -e $MUTANTS_LOST ]] || die mutants "a server has ended; start the servers, and continue with RESUME=1"
  say mutants "$module took $(since "$start"); missed:"
  sed 's/^/  /' "$out/$module/mutants.out/missed.txt" >&2 || failed=1
done
exit "$failed"
