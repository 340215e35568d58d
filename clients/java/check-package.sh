#!/usr/bin/env bash
# Installs the built jars into a private repository, and enqueues a record from an empty project that has nothing but this
# dependency. Build them first: clients/java/test.sh does.

# shellcheck source=clients/java/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

version=0.1.0
built=$here/outbox/target/postrider-outbox-$version
contains() { jar tf "$1" | grep -x "$2" >/dev/null || die "$1 does not contain $2"; }
contains "$built.jar" com/postrider/outbox/Outbox.class
contains "$built-sources.jar" com/postrider/outbox/Outbox.java
contains "$built-javadoc.jar" com.postrider.outbox/com/postrider/outbox/Outbox.html

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -a --reflink=auto "$repository" "$folder/repository"
repository=$folder/repository
cd "$folder"
maven --offline org.apache.maven.plugins:maven-install-plugin:3.1.4:install-file \
  -Dfile="$built.jar" -Dsources="$built-sources.jar" -Djavadoc="$built-javadoc.jar"

mkdir -p project/src/main/java
cd project
cat >pom.xml <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>stranger</groupId>
  <artifactId>shop</artifactId>
  <version>1</version>
  <properties>
    <maven.compiler.release>17</maven.compiler.release>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
  <dependencies>
    <dependency>
      <groupId>com.postrider</groupId>
      <artifactId>postrider-outbox</artifactId>
      <version>$version</version>
    </dependency>
  </dependencies>
  <build>
    <plugins>
      <plugin>
        <artifactId>maven-resources-plugin</artifactId>
        <version>3.5.0</version>
      </plugin>
      <plugin>
        <artifactId>maven-compiler-plugin</artifactId>
        <version>3.14.1</version>
      </plugin>
    </plugins>
  </build>
</project>
POM
cat >src/main/java/Shop.java <<'JAVA'
import com.mongodb.client.MongoClients;
import com.postrider.outbox.Outbox;
import com.postrider.outbox.OutboxRecord;
import org.bson.Document;

public class Shop {
    public static void main(String[] arguments) {
        try (var client = MongoClients.create(System.getenv("POSTRIDER_TEST_MONGODB_URI"));
                var session = client.startSession()) {
            var database = client.getDatabase("java_package_" + ProcessHandle.current().pid());
            var outbox = Outbox.of(database);
            outbox.probe(client);
            var record = OutboxRecord.builder("OrderCreated").key("order-7").payload(new Document("order", 7)).build();
            session.withTransaction(() -> outbox.enqueue(session, record));
            var stored = database.getCollection("outbox_records").find().first();
            database.drop();
            System.out.println(stored.getInteger("partition") + " " + stored.getString("key"));
        }
    }
}
JAVA
maven --offline compile org.apache.maven.plugins:maven-dependency-plugin:3.11.0:build-classpath \
  -Dmdep.outputFile=classpath -DincludeScope=runtime
# One dependency, the driver, with what the driver itself depends on.
jars=$(tr : '\n' <classpath | sed 's|.*/||; s|-[0-9].*||' | LC_ALL=C sort | paste -sd ' ')
[[ $jars == "bson bson-record-codec mongodb-driver-core mongodb-driver-sync postrider-outbox" ]] ||
  die "the package brings other jars than the driver's: $jars"
output=$(java -cp "target/classes:$(<classpath)" Shop 2>/dev/null)
[[ $output == "126 order-7" ]] || die "the empty project did not enqueue its record: $output"
