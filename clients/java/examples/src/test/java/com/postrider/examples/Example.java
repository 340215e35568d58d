package com.postrider.examples;

import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/** An example that runs as a process of its own, as a user would run it. */
final class Example implements AutoCloseable {
    private static final long LIMIT_SECONDS = 90;

    private final Process process;
    private final Path output;

    Example(Class<?> program, Map<String, String> environment) throws IOException {
        output = Files.createTempFile("postrider-example", ".log");
        String java = System.getProperty("java.home") + File.separator + "bin" + File.separator + "java";
        ProcessBuilder builder = new ProcessBuilder(
                        java,
                        "-XX:TieredStopAtLevel=1",
                        "-cp",
                        System.getProperty("java.class.path"),
                        program.getName())
                .redirectErrorStream(true)
                .redirectOutput(output.toFile());
        builder.environment().putAll(environment);
        process = builder.start();
    }

    /** Returns a variable of the environment, without which the tests cannot run. */
    static String environment(String variable) {
        String value = System.getenv(variable);
        if (value == null) {
            throw new IllegalStateException(variable
                    + " is not set; start the servers (scripts/services.sh start) and run " + "clients/java/test.sh");
        }
        return value;
    }

    /** Writes to its standard input, and ends that. */
    void input(String text) throws IOException {
        try (OutputStream input = process.getOutputStream()) {
            input.write(text.getBytes(StandardCharsets.UTF_8));
        }
    }

    /** Waits for its end, and returns the lines that it has written. */
    List<String> outputAtItsEnd() throws Exception {
        if (!process.waitFor(LIMIT_SECONDS, TimeUnit.SECONDS) || process.exitValue() != 0) {
            throw new AssertionError("the example did not end well:\n" + output());
        }
        return output().lines().toList();
    }

    /** Waits for a condition while the example runs. */
    void await(String what, BooleanSupplier condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_SECONDS);
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline || !process.isAlive()) {
                throw new AssertionError("waited without success for " + what + "; the example wrote:\n" + output());
            }
            Thread.sleep(5);
        }
    }

    /** Ends it by SIGKILL. */
    void kill() {
        process.destroyForcibly().onExit().join();
    }

    /** Ends it by SIGTERM, and returns its exit code. */
    int stop() throws InterruptedException {
        process.destroy();
        return process.waitFor();
    }

    String output() throws IOException {
        return Files.readString(output);
    }

    @Override
    public void close() throws IOException {
        kill();
        Files.delete(output);
    }
}
