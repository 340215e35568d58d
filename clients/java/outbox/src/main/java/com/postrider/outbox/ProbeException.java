package com.postrider.outbox;

/** The deployment, or something between it and the application, cannot hold an outbox. The message names the remedy. */
public final class ProbeException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    ProbeException(String problem) {
        this(problem, null);
    }

    ProbeException(String problem, Throwable cause) {
        super("outbox probe: " + problem, cause);
    }
}
