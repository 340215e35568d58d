package com.postrider.outbox.testing;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.bson.Document;

/**
 * A relay for tests: the real program, which writes the messages to a file instead of a broker.
 *
 * <pre>{@code
 * try (TestRelay relay = TestRelay.start("mongodb://localhost:27017/shop?replicaSet=rs0")) {
 *     placeOrder("order-7");
 *     SentMessage message = relay.awaitMessages("order-7", 1, Duration.ofSeconds(10)).get(0);
 *     assertEquals("OrderCreated", message.type());
 * }
 * }</pre>
 *
 * <p>It runs the program that the environment variable {@code POSTRIDER_BIN} names, else {@code postrider} on the {@code
 * PATH}. It depends on no test framework: close it when the test, or the class of tests, ends.
 */
public final class TestRelay implements AutoCloseable {
    private static final Duration START_LIMIT = Duration.ofSeconds(60);
    private static final Duration STOP_LIMIT = Duration.ofSeconds(30);
    private static final Duration POLL_INTERVAL = Duration.ofMillis(20);
    private static final Pattern ADDRESS = Pattern.compile("\"address\":\"([^\"]+)\"");
    private static final int OK = 200;

    private final Path folder;
    private final Path messages;
    private final Path log;
    private final Process process;

    private TestRelay(Builder builder) {
        try {
            folder = Files.createTempDirectory("postrider-test");
            messages = folder.resolve("messages.ndjson");
            log = folder.resolve("log.ndjson");
            Path config = Files.writeString(folder.resolve("postrider.json"), builder.config(messages));
            process = new ProcessBuilder(builder.program, "run", "--config", config.toString())
                    .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                    .redirectError(log.toFile())
                    .start();
        } catch (IOException e) {
            throw new IllegalStateException(
                    "test relay: failed to start " + builder.program + "; set POSTRIDER_BIN to the program postrider",
                    e);
        }
    }

    /**
     * Starts a relay, and waits until it is ready. It creates missing collections of the outbox.
     *
     * @param mongodbUri the MongoDB replica set, with the database of the application
     * @return the running relay
     * @throws IllegalStateException if the relay cannot be started, with what it logged
     */
    public static TestRelay start(String mongodbUri) {
        return builder(mongodbUri).start();
    }

    /**
     * Begins a relay with settings.
     *
     * @param mongodbUri the MongoDB replica set, with the database of the application
     * @return a builder
     */
    public static Builder builder(String mongodbUri) {
        return new Builder(mongodbUri);
    }

    /**
     * Returns the messages that were sent so far, in their order, each once.
     *
     * @return the messages
     */
    public List<SentMessage> messages() {
        Map<String, SentMessage> byId = new LinkedHashMap<>();
        lines(messages)
                .filter(line -> line.startsWith("{"))
                .map(SentMessage::of)
                .forEach(message -> byId.putIfAbsent(message.id(), message));
        return List.copyOf(byId.values());
    }

    /**
     * Returns the messages of one key that were sent so far, in their order, each once.
     *
     * @param key the key
     * @return the messages
     */
    public List<SentMessage> messages(String key) {
        return messages().stream().filter(message -> key.equals(message.key())).toList();
    }

    /**
     * Waits until a number of messages were sent.
     *
     * @param count the number of messages, of all keys
     * @param limit how long it waits
     * @return the messages, which may be more
     * @throws AssertionError if fewer were sent in time, with the log of the relay
     */
    public List<SentMessage> awaitMessages(int count, Duration limit) {
        return await(this::messages, count, limit);
    }

    /**
     * Waits until a number of messages of one key were sent.
     *
     * @param key the key
     * @param count the number of messages
     * @param limit how long it waits
     * @return the messages, which may be more
     * @throws AssertionError if fewer were sent in time, with the log of the relay
     */
    public List<SentMessage> awaitMessages(String key, int count, Duration limit) {
        return await(() -> messages(key), count, limit);
    }

    /** Stops the relay, and removes its files. */
    @Override
    public void close() {
        process.destroy();
        if (!ends(STOP_LIMIT)) {
            process.destroyForcibly();
            ends(STOP_LIMIT);
        }
        try (Stream<Path> files = Files.list(folder)) {
            for (Path file : files.toList()) {
                Files.delete(file);
            }
            Files.delete(folder);
        } catch (IOException e) {
            throw new IllegalStateException("test relay: failed to remove " + folder, e);
        }
    }

    private boolean ends(Duration limit) {
        return eventually(() -> !process.isAlive(), limit);
    }

    private void awaitReady() {
        boolean ready = eventually(() -> !process.isAlive() || isReady(), START_LIMIT);
        if (!ready || !process.isAlive()) {
            String ending = process.isAlive() ? "is not ready after " + START_LIMIT.toSeconds() + " s" : "has ended";
            String said = log();
            close();
            throw new IllegalStateException("test relay: " + ending + "; it logged:\n" + said);
        }
    }

    private boolean isReady() {
        Matcher address = ADDRESS.matcher(log());
        if (!address.find()) {
            return false;
        }
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://" + address.group(1) + "/readyz"))
                .timeout(START_LIMIT)
                .build();
        try {
            return HttpClient.newHttpClient()
                            .send(request, HttpResponse.BodyHandlers.discarding())
                            .statusCode()
                    == OK;
        } catch (IOException e) {
            return false;
        } catch (InterruptedException e) {
            throw interrupted(e);
        }
    }

    private List<SentMessage> await(Supplier<List<SentMessage>> found, int count, Duration limit) {
        if (!eventually(() -> found.get().size() >= count, limit)) {
            throw new AssertionError("after " + limit.toMillis() + " ms the relay had sent "
                    + found.get().size() + " of " + count + " messages; it logged:\n" + log());
        }
        return found.get();
    }

    private static boolean eventually(Supplier<Boolean> condition, Duration limit) {
        long deadline = System.nanoTime() + limit.toNanos();
        while (!condition.get()) {
            if (System.nanoTime() > deadline) {
                return false;
            }
            try {
                Thread.sleep(POLL_INTERVAL.toMillis());
            } catch (InterruptedException e) {
                throw interrupted(e);
            }
        }
        return true;
    }

    private static IllegalStateException interrupted(InterruptedException cause) {
        Thread.currentThread().interrupt();
        return new IllegalStateException("test relay: interrupted", cause);
    }

    private String log() {
        return String.join("\n", (Iterable<String>) lines(log)::iterator);
    }

    /** Returns the lines that are complete: the relay may be writing the last one. */
    private static Stream<String> lines(Path file) {
        try {
            String text = Files.exists(file) ? new String(Files.readAllBytes(file), StandardCharsets.UTF_8) : "";
            return text.substring(0, text.lastIndexOf('\n') + 1).lines();
        } catch (IOException e) {
            throw new IllegalStateException("test relay: failed to read " + file, e);
        }
    }

    /** Settings of a {@link TestRelay}. */
    public static final class Builder {
        private final String mongodbUri;
        private String program;
        private String prefix = "";

        private Builder(String mongodbUri) {
            this.mongodbUri = mongodbUri;
            String variable = System.getenv("POSTRIDER_BIN");
            program = variable == null ? "postrider" : variable;
        }

        /**
         * Sets the program. By default it is the environment variable {@code POSTRIDER_BIN}, else {@code postrider}.
         *
         * @param program the path of the program
         * @return this
         */
        public Builder program(Path program) {
            this.program = program.toString();
            return this;
        }

        /**
         * Sets the {@code outbox.collection_prefix}. By default it is empty.
         *
         * @param prefix the prefix of the names of the outbox's collections
         * @return this
         */
        public Builder collectionPrefix(String prefix) {
            this.prefix = prefix;
            return this;
        }

        /**
         * Starts the relay, and waits until it is ready.
         *
         * @return the running relay
         * @throws IllegalStateException if the relay cannot be started, with what it logged
         */
        public TestRelay start() {
            TestRelay relay = new TestRelay(this);
            relay.awaitReady();
            return relay;
        }

        private String config(Path messages) {
            Document sink = new Document("kind", "file").append("path", messages.toString());
            return new Document("mongo", new Document("uri", mongodbUri))
                    .append("outbox", new Document("collection_prefix", prefix))
                    .append("sinks", new Document("test", sink))
                    .append("ops", new Document("listen", "127.0.0.1:0"))
                    .append("log", new Document("format", "json"))
                    .toJson();
        }
    }
}
