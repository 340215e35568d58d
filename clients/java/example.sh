#!/usr/bin/env bash
# Runs an example: clients/java/example.sh producer|consumer-rabbitmq|consumer-kafka|consumer-versions

# shellcheck source=clients/java/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in
  producer) class=Producer ;;
  consumer-rabbitmq) class=RabbitReceiver ;;
  consumer-kafka) class=KafkaReceiver ;;
  consumer-versions) class=VersionedReceiver ;;
  *) die "usage: example.sh producer|consumer-rabbitmq|consumer-kafka|consumer-versions" ;;
esac
target=$here/examples/target
build() {
  local built=$target/classes/com/postrider/examples/$class.class
  if [[ -d $target/dependency && -e $built && -z $(find "$here"/{outbox,examples}/src/main -newer "$built") ]]; then
    return
  fi
  maven --file "$here/pom.xml" -DskipTests -Dmaven.javadoc.skip=true --projects examples --also-make package >&2
}
# Several may be started at once.
(flock 8 && build) 8<"$here/pom.xml"
exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx256m -cp "$target/classes:$target/dependency/*" "com.postrider.examples.$class"
