package io.debezium.connector.mongodb; // for JsonSerialization, which writes `after` in the connector

import io.debezium.connector.mongodb.transforms.outbox.MongoEventRouter;
import io.debezium.data.Envelope;
import io.debezium.data.Json;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.storage.StringConverter;
import org.bson.BsonArray;
import org.bson.BsonDocument;
import org.bson.BsonNull;
import org.bson.BsonString;
import org.bson.BsonValue;
import org.bson.json.JsonMode;
import org.bson.json.JsonWriterSettings;

/** Writes what Debezium's MongoDB outbox router makes of documents: topic, key, value, headers. */
public final class RouterExpectations {
  private static final JsonWriterSettings CANONICAL =
      JsonWriterSettings.builder().outputMode(JsonMode.EXTENDED).build();
  private static final String EXPAND = "collection.expand.json.payload";
  private static final String PLACEMENT = "collection.fields.additional.placement";

  /** Every BSON type that a payload commonly has. */
  private static final String ALL_TYPES =
      """
      {"int32": {"$numberInt": "1"}, "int64": {"$numberLong": "9007199254740993"},
       "small_int64": {"$numberLong": "2"}, "double": {"$numberDouble": "2.5"},
       "whole_double": {"$numberDouble": "3.0"}, "tiny": {"$numberDouble": "1.0E-10"},
       "huge": {"$numberDouble": "1.0E+25"}, "nan": {"$numberDouble": "NaN"},
       "date": {"$date": {"$numberLong": "1700000000123"}},
       "decimal": {"$numberDecimal": "12.50"}, "nested": {"a": {"b": {"$numberInt": "-7"}}, "empty": {}},
       "array": [{"$numberInt": "1"}, {"$numberInt": "2"}], "texts": ["x", "y"], "none": [],
       "objectid": {"$oid": "64f0c0ffee64f0c0ffee64f0"}, "true": true, "false": false, "null": null,
       "text": "quote \\" slash / backslash \\\\ line\\n é 😀 \\u0001", "binary":
       {"$binary": {"base64": "AQID", "subType": "00"}}, "uuid":
       {"$binary": {"base64": "AAECAwQFBgcICQoLDA0ODw==", "subType": "04"}},
       "timestamp": {"$timestamp": {"t": 1700000000, "i": 1}}}""";

  private static final String OBJECT_ID = "{\"$oid\": \"64f0000000000000000000aa\"}";

  private record Case(String name, Map<String, String> options, Map<String, String> fields) {}

  /** The fields are extended JSON; those not named have the value that most documents have. */
  private static final List<Case> CASES =
      List.of(
          new Case("key_object_id", Map.of(), Map.of("aggregateid", OBJECT_ID)),
          new Case("key_text", Map.of(), Map.of()),
          new Case("key_int32", Map.of(), Map.of("aggregateid", "{\"$numberInt\": \"42\"}")),
          new Case("key_int64", Map.of(), Map.of("aggregateid", "{\"$numberLong\": \"5000000000\"}")),
          new Case("key_absent", Map.of(), Map.of("aggregateid", "absent")),
          new Case("key_null", Map.of(), Map.of("aggregateid", "null")),
          new Case("payload_all_types", Map.of(), Map.of("payload", ALL_TYPES)),
          new Case("payload_empty", Map.of(), Map.of("payload", "{}")),
          new Case("payload_text", Map.of(), Map.of("payload", "\"plain text\"")),
          new Case("payload_json_text", Map.of(), Map.of("payload", "\"{\\\"a\\\":  1.50}\"")),
          new Case("payload_array", Map.of(), Map.of("payload", "[{\"$numberInt\": \"1\"}]")),
          new Case("payload_array_texts", Map.of(), Map.of("payload", "[\"x\", \"y\"]")),
          new Case("payload_array_documents", Map.of(), Map.of("payload", "[{\"a\": {\"$numberInt\": \"1\"}}]")),
          new Case("payload_array_object_ids", Map.of(), Map.of("payload", "[" + OBJECT_ID + "]")),
          new Case("payload_array_dates", Map.of(), Map.of("payload", "[{\"$date\": {\"$numberLong\": \"1700000000123\"}}]")),
          new Case("payload_object_id", Map.of(), Map.of("payload", OBJECT_ID)),
          new Case("payload_date", Map.of(), Map.of("payload", "{\"$date\": {\"$numberLong\": \"1700000000123\"}}")),
          new Case("payload_decimal", Map.of(), Map.of("payload", "{\"$numberDecimal\": \"12.50\"}")),
          new Case("payload_int64", Map.of(), Map.of("payload", "{\"$numberLong\": \"5000000000\"}")),
          new Case("payload_double", Map.of(), Map.of("payload", "{\"$numberDouble\": \"2.5\"}")),
          new Case("payload_binary", Map.of(), Map.of("payload", "{\"$binary\": {\"base64\": \"AQID\", \"subType\": \"00\"}}")),
          new Case("payload_int32", Map.of(), Map.of("payload", "{\"$numberInt\": \"7\"}")),
          new Case("payload_boolean", Map.of(), Map.of("payload", "true")),
          new Case("payload_null", Map.of(), Map.of("payload", "null")),
          new Case("payload_absent", Map.of(), Map.of("payload", "absent")),
          new Case("payload_null_tombstone", Map.of("route.tombstone.on.empty.payload", "true"), Map.of("payload", "null")),
          new Case("type_absent", Map.of(), Map.of("type", "absent")),
          new Case(
              "placement_header",
              Map.of(PLACEMENT, "type:header:eventType,tenant:header,retries:header:x-retries,order:header"),
              Map.of("tenant", "\"north\"", "retries", "{\"$numberInt\": \"3\"}", "order", OBJECT_ID)),
          new Case("placement_absent", Map.of(PLACEMENT, "tenant:header"), Map.of()),
          new Case("placement_null", Map.of(PLACEMENT, "tenant:header"), Map.of("tenant", "null")),
          new Case("placement_envelope", Map.of(PLACEMENT, "type:envelope:eventType"), Map.of()),
          new Case(
              "renamed",
              Map.of(
                  "collection.field.event.id", "eventId",
                  "collection.field.event.key", "orderId",
                  "collection.field.event.type", "kind",
                  "collection.field.event.payload", "data",
                  "route.by.field", "category",
                  "route.topic.replacement", "shop.${routedByValue}.events"),
              Map.of("eventId", "\"e-1\"", "orderId", "\"o-9\"", "kind", "\"Paid\"", "data",
                  "{\"n\": {\"$numberInt\": \"1\"}}", "category", "\"orders\"")),
          new Case(
              "timestamp",
              Map.of("collection.field.event.timestamp", "at"),
              Map.of("at", "{\"$numberLong\": \"1700000000123\"}")),
          new Case(
              "timestamp_date",
              Map.of("collection.field.event.timestamp", "at"),
              Map.of("at", "{\"$date\": {\"$numberLong\": \"1700000000123\"}}")),
          new Case(
              "expand_plain",
              Map.of(EXPAND, "true"),
              Map.of("payload",
                  "{\"int32\": {\"$numberInt\": \"1\"}, \"int64\": {\"$numberLong\": \"5000000000\"}, \"double\":"
                      + " {\"$numberDouble\": \"2.5\"}, \"text\": \"x\", \"true\": true, \"nested\": {\"a\":"
                      + " {\"$numberInt\": \"2\"}}, \"array\": [\"x\", \"y\"]}")),
          new Case("expand_all_types", Map.of(EXPAND, "true"), Map.of("payload", ALL_TYPES)),
          new Case("expand_json_text", Map.of(EXPAND, "true"), Map.of("payload", "\"{\\\"a\\\":  1.50}\"")),
          new Case("expand_text", Map.of(EXPAND, "true"), Map.of("payload", "\"plain text\"")));

  private RouterExpectations() {}

  public static void main(String[] arguments) throws Exception {
    var results = new BsonArray();
    for (int number = 0; number < CASES.size(); number++) {
      results.add(result(CASES.get(number), number + 1));
    }
    var version = MongoEventRouter.class.getPackage().getImplementationVersion();
    var lines = new ArrayList<String>();
    for (BsonValue one : results) {
      lines.add(one.asDocument().toJson(JsonWriterSettings.builder().outputMode(JsonMode.RELAXED).build()));
    }
    var text = "[\n" + String.join(",\n", lines) + "\n]\n";
    Files.writeString(Path.of(arguments[0]), text, StandardCharsets.UTF_8);
    System.err.println(new MongoEventRouter<SourceRecord>().config().names());
    System.err.println("Debezium " + version + ": " + results.size() + " cases");
  }

  private static BsonDocument result(Case one, int number) {
    var document = document(one.fields(), number);
    var options = new BsonDocument();
    one.options().entrySet().stream()
        .sorted(Map.Entry.comparingByKey())
        .forEach(option -> options.append(option.getKey(), new BsonString(option.getValue())));
    var result =
        new BsonDocument("case", new BsonString(one.name()))
            .append("options", options)
            .append("document", new BsonString(document.toJson(CANONICAL)));
    try (var router = new MongoEventRouter<SourceRecord>()) {
      router.configure(one.options());
      SourceRecord routed = router.apply(changeEvent(document));
      if (routed == null) {
        return result.append("dropped", org.bson.BsonBoolean.TRUE);
      }
      return result
          .append("topic", new BsonString(routed.topic()))
          .append("key", bytes(new StringConverter(), routed, routed.keySchema(), routed.key(), true))
          // A value that is no text becomes JSON; one that is, stays as it is.
          .append("value", bytes(converter(routed.value()), routed, routed.valueSchema(), routed.value(), false))
          .append("valueClass", new BsonString(routed.value() == null ? "null" : routed.value().getClass().getSimpleName()))
          .append("timestamp", one.options().containsKey("collection.field.event.timestamp")
              ? new org.bson.BsonInt64(routed.timestamp()) : BsonNull.VALUE)
          .append("headers", headers(routed));
    } catch (RuntimeException failed) {
      return result.append("error", new BsonString(failed.getClass().getSimpleName() + ": " + failed.getMessage()));
    }
  }

  private static BsonDocument document(Map<String, String> fields, int number) {
    var document = new BsonDocument();
    var defaults =
        Map.of(
            "_id", "{\"$oid\": \"65000000%016x\"}".formatted(number),
            "aggregatetype", "\"Order\"",
            "aggregateid", "\"order-1\"",
            "type", "\"OrderCreated\"",
            "payload", "{\"total\": {\"$numberInt\": \"1\"}}");
    for (String name : List.of("_id", "aggregatetype", "aggregateid", "type", "payload")) {
      append(document, name, fields.getOrDefault(name, defaults.get(name)));
    }
    fields.entrySet().stream()
        .sorted(Map.Entry.comparingByKey())
        .filter(field -> !defaults.containsKey(field.getKey()))
        .forEach(field -> append(document, field.getKey(), field.getValue()));
    return document;
  }

  private static void append(BsonDocument document, String name, String json) {
    if (!json.equals("absent")) {
      document.append(name, BsonDocument.parse("{\"v\": " + json + "}").get("v"));
    }
  }

  /** The change event of an insert, as the connector makes it. */
  private static SourceRecord changeEvent(BsonDocument document) {
    Schema source =
        SchemaBuilder.struct()
            .name("io.debezium.connector.mongo.Source")
            .field("version", Schema.STRING_SCHEMA)
            .field("connector", Schema.STRING_SCHEMA)
            .field("name", Schema.STRING_SCHEMA)
            .field("ts_ms", Schema.INT64_SCHEMA)
            .field("snapshot", Schema.OPTIONAL_STRING_SCHEMA)
            .field("db", Schema.STRING_SCHEMA)
            .field("collection", Schema.STRING_SCHEMA)
            .build();
    Schema value =
        SchemaBuilder.struct()
            .name("server.db.outbox.Envelope")
            .field(Envelope.FieldName.BEFORE, Json.builder().optional().build())
            .field(Envelope.FieldName.AFTER, Json.builder().optional().build())
            .field(MongoDbFieldName.UPDATE_DESCRIPTION, MongoDbSchema.UPDATED_DESCRIPTION_SCHEMA)
            .field(Envelope.FieldName.SOURCE, source)
            .field(Envelope.FieldName.OPERATION, Schema.OPTIONAL_STRING_SCHEMA)
            .field(Envelope.FieldName.TIMESTAMP, Schema.OPTIONAL_INT64_SCHEMA)
            .field(Envelope.FieldName.TIMESTAMP_US, Schema.OPTIONAL_INT64_SCHEMA)
            .field(Envelope.FieldName.TIMESTAMP_NS, Schema.OPTIONAL_INT64_SCHEMA)
            .build();
    Struct from =
        new Struct(source)
            .put("version", "3").put("connector", "mongodb").put("name", "server").put("ts_ms", 1_700_000_000_000L)
            .put("db", "db").put("collection", "outbox");
    var serialization = new JsonSerialization();
    Struct change =
        Envelope.fromSchema(value).create(serialization.getDocumentValue(document), from, Instant.ofEpochSecond(1_700_000_000));
    Schema key = SchemaBuilder.struct().name("server.db.outbox.Key").field("id", Schema.STRING_SCHEMA).build();
    Struct id = new Struct(key).put("id", serialization.getDocumentId(new BsonDocument("_id", document.get("_id"))));
    return new SourceRecord(Map.of(), Map.of(), "server.db.outbox", null, key, id, value, change);
  }

  private static Converter converter(Object value) {
    return value instanceof String || value == null ? new StringConverter() : new JsonConverter();
  }

  private static BsonValue bytes(Converter converter, SourceRecord routed, Schema schema, Object value, boolean isKey) {
    converter.configure(Map.of("schemas.enable", "false"), isKey);
    byte[] bytes = converter.fromConnectData(routed.topic(), schema, value);
    return bytes == null ? BsonNull.VALUE : new BsonString(new String(bytes, StandardCharsets.UTF_8));
  }

  /** The headers as Kafka Connect writes them by default. */
  private static BsonDocument headers(SourceRecord routed) {
    var headers = new BsonDocument();
    try (var converter = new SimpleHeaderConverter()) {
      for (Header header : routed.headers()) {
        byte[] bytes = converter.fromConnectHeader(routed.topic(), header.key(), header.schema(), header.value());
        headers.append(header.key(),
            bytes == null ? BsonNull.VALUE : new BsonString(new String(bytes, StandardCharsets.UTF_8)));
      }
    } catch (java.io.IOException impossible) {
      throw new java.io.UncheckedIOException(impossible);
    }
    return headers;
  }
}
