# A second mongod, with access control, for the tests that run under the least roles. One member, as `mongodb`.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

# Its administrator, for the tests: on the loopback interface only, with test data only.
mongodb_auth_admin="admin"
mongodb_auth_password=the-admins-own

mongodb-auth_where() { echo "port $POSTRIDER_MONGODB_AUTH_PORT, log $logs/mongodb-auth.log"; }
mongodb-auth_packages() { mongodb_packages; }
mongodb-auth_install() { install_one mongodb; }
mongodb-auth_ready() { mongo_is_primary "$POSTRIDER_MONGODB_AUTH_PORT"; }

mongodb-auth_start() {
  running_already mongodb-auth mongodb-auth_ready && return
  local port=$POSTRIDER_MONGODB_AUTH_PORT start mongod
  start=$(now_ms)
  mongod=$(mongodb_binary) || die mongodb-auth "not installed; run: scripts/services.sh install mongodb-auth"
  need_port mongodb-auth "$port" POSTRIDER_MONGODB_AUTH_PORT=…
  local dbpath=$data/mongodb-auth/$port
  mkdir -p "$dbpath"
  # The key by which members of the set know one another; it also turns access control on.
  local key=$data/mongodb-auth/key
  (umask 077 && echo 'c2hhcmVkIGJ5IHRoZSBtZW1iZXJz' >"$key")
  say mongodb-auth "starting…"
  # As few rounds of hashing as MongoDB permits: a test build is slow at them, and each test has users of its own.
  launch mongodb-auth "$mongod" --dbpath "$dbpath" --bind_ip 127.0.0.1 --port "$port" --replSet "$mongodb_set" \
    --auth --keyFile "$key" --nounixsocket --wiredTigerCacheSizeGB 0.5 --oplogSize 512 \
    --setParameter scramSHA256IterationCount=5000 --setParameter enableTestCommands=1 \
    --setParameter ttlMonitorSleepSecs=1 --setParameter diagnosticDataCollectionEnabled=false
  await_ready mongodb-auth 60 listening "$port"
  mongo_is_initiated "$port" || mongo_initiate "$port" "$mongodb_set"
  await_ready mongodb-auth 60 mongodb-auth_ready
  mongo_create_admin "$port" "$mongodb_auth_admin" "$mongodb_auth_password"
  say mongodb-auth "ready in $(since "$start"), $(mongodb-auth_where)"
}

mongodb-auth_stop() { stop_processes mongodb-auth 30; }

mongodb-auth_clean() { rm -rf "$data/mongodb-auth"; }

mongodb-auth_env() {
  local login=$mongodb_auth_admin:$mongodb_auth_password host=127.0.0.1:$POSTRIDER_MONGODB_AUTH_PORT
  export_line POSTRIDER_TEST_MONGODB_AUTH_URI "mongodb://$login@$host/?replicaSet=$mongodb_set&authSource=admin"
}
