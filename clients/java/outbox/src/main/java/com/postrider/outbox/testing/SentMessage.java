package com.postrider.outbox.testing;

import java.time.Instant;
import java.util.Base64;
import java.util.Map;
import org.bson.Document;

/**
 * A message that the relay has sent.
 *
 * @param id the message id
 * @param key the key; null without one
 * @param type the message type
 * @param destination where the message goes: the {@code destination} of the record or of its route; null without one
 * @param contentType the content type
 * @param headers the headers
 * @param timestamp the {@code createdAt} of the record
 * @param payload a {@link Document}, list, text, number, boolean or null where the payload is JSON or text; else bytes
 */
public record SentMessage(
        String id,
        String key,
        String type,
        String destination,
        String contentType,
        Map<String, Object> headers,
        Instant timestamp,
        Object payload) {

    /**
     * Returns the payload of a message whose payload is a document.
     *
     * @return the payload
     * @throws ClassCastException if it is not a document
     */
    public Document document() {
        return (Document) payload;
    }

    /** Reads a line that the relay wrote. */
    static SentMessage of(String line) {
        Document json = Document.parse(line);
        String timestamp = json.getString("timestamp");
        String bytes = json.getString("payloadBase64");
        return new SentMessage(
                String.valueOf(json.get("id")),
                json.getString("key"),
                json.getString("type"),
                json.getString("destination"),
                json.getString("contentType"),
                json.get("headers", new Document()),
                timestamp == null ? null : Instant.parse(timestamp),
                bytes == null ? json.get("payload") : Base64.getDecoder().decode(bytes));
    }
}
