#!/usr/bin/env bash
# Compares enqueue with a bare insertOne of the same document. Needs POSTRIDER_TEST_MONGODB_URI.
#
#   clients/java/bench.sh

# shellcheck source=clients/java/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$here/outbox"
maven test-compile org.apache.maven.plugins:maven-dependency-plugin:3.11.0:build-classpath \
  -Dmdep.outputFile=target/classpath -DincludeScope=test
java -cp "target/test-classes:target/classes:$(<target/classpath)" com.postrider.outbox.EnqueueBench
