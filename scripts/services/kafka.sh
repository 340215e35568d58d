# Kafka: one KRaft node, broker and controller in one process, from the jars Maven fetches.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

kafka_dir=$cache/kafka-$KAFKA_SCALA-$KAFKA_VERSION
# Any 16 bytes in base64 will do; a fixed one saves starting a JVM to make one.
kafka_cluster=MkU3OEVBNTcwNTJENDM2Qg
kafka_where() { echo "port $POSTRIDER_KAFKA_PORT, log $logs/kafka.log"; }

kafka_java_fits() {
  local version
  version=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
  [[ -n $version ]] && ((version >= KAFKA_JAVA_MINIMUM))
}

kafka_packages() {
  kafka_java_fits || echo "openjdk-$KAFKA_JAVA_MINIMUM-jre-headless"
  [[ -d $kafka_dir ]] || have mvn || echo maven
}

kafka_install() {
  kafka_java_fits || die kafka "no java >= $KAFKA_JAVA_MINIMUM on PATH"
  [[ -d $kafka_dir ]] && return
  local start
  start=$(now_ms)
  say kafka "fetching the broker's jars (Kafka $KAFKA_VERSION, about 43 MB)…"
  rm -rf "$kafka_dir.part" && mkdir -p "$kafka_dir.part"
  # Maven's repository is in the cache folder too, not in the user's home.
  quietly kafka "$logs/install-kafka.log" mvn --batch-mode --no-transfer-progress \
    --file "$repo/scripts/services/kafka/pom.xml" -Dmaven.repo.local="$cache/maven" \
    -Dkafka.version="$KAFKA_VERSION" -Dscala.version="$KAFKA_SCALA" -Dlog4j.version="$KAFKA_LOG4J" \
    -Dmaven-dependency-plugin.version="$KAFKA_MAVEN_DEPENDENCY_PLUGIN" \
    dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$kafka_dir.part" ||
    die kafka "the jars could not be fetched; Maven must reach its repository, or use: docker compose up"
  mv "$kafka_dir.part" "$kafka_dir"
  rm -rf "$cache/maven" # the same jars again, and Maven's plugins
  say kafka "installed $KAFKA_VERSION in $(since "$start")"
}

# The serial collector and a small heap, since the broker shares the machine.
kafka_java=(java -Xmx512m -XX:+UseSerialGC
  "-Dlog4j2.configurationFile=$repo/scripts/services/kafka/log4j2.properties" -cp "$kafka_dir/*")

kafka_configure() {
  local broker=$POSTRIDER_KAFKA_PORT controller=$POSTRIDER_KAFKA_CONTROLLER_PORT
  cat >"$data/kafka/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
listeners=PLAINTEXT://127.0.0.1:$broker,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAINTEXT://127.0.0.1:$broker
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$data/kafka/log
# As in production: the operator of the broker makes topics, and a misspelt name is an error.
auto.create.topics.enable=false
# For topics whose maker leaves the choice to the broker.
num.partitions=4
default.replication.factor=1
# One broker: the internal topics have one replica, and few partitions, so that the first consumer does not wait for
# fifty.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
# Tests' consumers join at once.
group.initial.rebalance.delay.ms=0
PROPERTIES
}

# The port opens before the broker accepts requests, so its log line counts too.
kafka_ready() { listening "$POSTRIDER_KAFKA_PORT" && grep -q 'Kafka Server started' "$logs/kafka.log"; }

kafka_start() {
  running_already kafka kafka_ready && return
  local start
  start=$(now_ms)
  [[ -d $kafka_dir ]] || die kafka "not installed; run: scripts/services.sh install kafka"
  need_port kafka "$POSTRIDER_KAFKA_PORT" POSTRIDER_KAFKA_PORT=…
  need_port kafka "$POSTRIDER_KAFKA_CONTROLLER_PORT" POSTRIDER_KAFKA_CONTROLLER_PORT=…
  say kafka "starting…"
  mkdir -p "$data/kafka"
  kafka_configure
  [[ -e $data/kafka/log/meta.properties ]] ||
    quietly kafka "$logs/kafka-format.log" "${kafka_java[@]}" kafka.tools.StorageTool format \
      -t "$kafka_cluster" -c "$data/kafka/server.properties" || die kafka "its storage could not be formatted"
  launch kafka "${kafka_java[@]}" kafka.Kafka "$data/kafka/server.properties"
  await_ready kafka 120 kafka_ready
  say kafka "ready in $(since "$start"), $(kafka_where)"
}

kafka_stop() { stop_processes kafka 30; }

kafka_clean() { rm -rf "$data/kafka"; }

kafka_env() {
  export_line POSTRIDER_TEST_KAFKA_BROKERS "127.0.0.1:$POSTRIDER_KAFKA_PORT"
  # The jars, for tests that run a broker of their own.
  export_line POSTRIDER_TEST_KAFKA_HOME "$kafka_dir"
}
