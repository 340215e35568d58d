package com.postrider.examples;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.UUID;

/** A queue of its own for a test, with a queue for its dead letters; both are deleted when it is closed. */
final class OwnQueue implements AutoCloseable {
    final String name = "java-" + UUID.randomUUID();
    private final String dead = name + "-dead";
    private final Connection connection;
    private final Channel channel;

    /** Declares a quorum queue. */
    OwnQueue() throws Exception {
        this("quorum");
    }

    OwnQueue(String type) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(Example.environment("POSTRIDER_TEST_AMQP_URI"));
        connection = factory.newConnection();
        channel = connection.createChannel();
        channel.confirmSelect();
        channel.queueDeclare(dead, true, false, false, Map.of());
        channel.queueDeclare(
                name,
                true,
                false,
                false,
                Map.of("x-queue-type", type, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead));
    }

    /** Publishes as the relay does. */
    void publish(String id, Map<String, Object> headers, String payload) throws Exception {
        BasicProperties properties = new BasicProperties.Builder()
                .messageId(id)
                .headers(headers)
                .deliveryMode(2)
                .build();
        channel.basicPublish("", name, properties, payload.getBytes(StandardCharsets.UTF_8));
        channel.waitForConfirmsOrDie();
    }

    int deadLetters() {
        try {
            return channel.queueDeclarePassive(dead).getMessageCount();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    String takeDeadLetter() throws Exception {
        GetResponse letter = channel.basicGet(dead, true);
        return new String(letter.getBody(), StandardCharsets.UTF_8);
    }

    @Override
    public void close() throws IOException {
        channel.queueDelete(name);
        channel.queueDelete(dead);
        connection.close();
    }
}
