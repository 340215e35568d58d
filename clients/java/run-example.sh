#!/usr/bin/env bash
# Runs an example. Build them first: mvn package -DskipTests (clients/java/test.sh does it too).
#
#   MONGODB_URI=…/shop clients/java/run-example.sh producer <lines
#   … run-example.sh consumer-rabbitmq | consumer-kafka | consumer-versions

set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case ${1:-} in
  producer) class=Producer ;;
  consumer-rabbitmq) class=RabbitReceiver ;;
  consumer-kafka) class=KafkaReceiver ;;
  consumer-versions) class=VersionedReceiver ;;
  *)
    echo "usage: run-example.sh producer|consumer-rabbitmq|consumer-kafka|consumer-versions" >&2
    exit 2
    ;;
esac
target=$here/examples/target
[[ -d $target/dependency ]] || { echo "not built; run: cd $here && mvn package -DskipTests" >&2; exit 1; }
exec java -cp "$target/classes:$target/dependency/*" "com.postrider.examples.$class"
