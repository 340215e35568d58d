#!/usr/bin/env bash
# Checks the Java client: format, warnings of the compiler and of javadoc, tests against real servers, the examples and
# the package. Needs Java 17 and Maven, and the environment of `scripts/services.sh env` with POSTRIDER_BIN.
#
#   clients/java/test.sh

# shellcheck source=clients/java/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$here"

for variable in POSTRIDER_TEST_MONGODB_URI POSTRIDER_TEST_MONGODB_AUTH_URI POSTRIDER_TEST_MONGOD \
  POSTRIDER_TEST_AMQP_URI POSTRIDER_TEST_KAFKA_BROKERS POSTRIDER_BIN; do
  [[ -n ${!variable:-} ]] || die "$variable is not set; start the servers and run: eval \"\$(scripts/services.sh env)\""
done

# What Maven has fetched must be what checksums.txt says. A repository that was checked is used offline.
checked=$repository/.checked-$(cat pom.xml ./*/pom.xml checksums.txt | sha256sum | cut -d ' ' -f 1)
offline=(--offline)
if [[ ! -e $checked ]]; then
  say "fetching the dependencies…"
  offline=(--strict-checksums)
  maven "${offline[@]}" -DskipTests verify
  maven "${offline[@]}" org.apache.maven.plugins:maven-install-plugin:3.1.4:help >/dev/null
  maven "${offline[@]}" --projects outbox org.apache.maven.plugins:maven-dependency-plugin:3.11.0:build-classpath >/dev/null
fi

say "format, compiler, javadoc, tests…"
maven "${offline[@]}" verify

if [[ ! -e $checked ]]; then
  (cd "$repository" && sha256sum --check --quiet "$here/checksums.txt") ||
    die "a fetched file is not the one of checksums.txt; if a version was changed, run: clients/java/checksums.sh"
  touch "$checked"
fi

say "package…"
./check-package.sh

passed=$(grep -ho '<testcase ' ./*/target/surefire-reports/TEST-*.xml | wc -l)
say "$passed passed, 0 failed"
