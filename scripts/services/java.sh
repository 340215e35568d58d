# A JDK and Maven, for the Java client: only installed.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

java_jdk_fits() {
  local version
  version=$(javac -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')
  [[ -n $version ]] && ((version >= KAFKA_JAVA_MINIMUM))
}

java_packages() {
  java_jdk_fits || echo "openjdk-$KAFKA_JAVA_MINIMUM-jdk-headless"
  have mvn || echo maven
}

java_install() {
  java_jdk_fits || die java "no javac >= $KAFKA_JAVA_MINIMUM on PATH"
  have mvn || die java "no mvn on PATH"
}

java_env() { export_line POSTRIDER_TEST_MAVEN "$(command -v mvn || true)"; }
