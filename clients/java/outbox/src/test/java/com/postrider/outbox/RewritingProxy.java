package com.postrider.outbox;

import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/** Stands between a client and MongoDB, and replaces bytes of the requests, as a broken proxy or service might. */
final class RewritingProxy implements AutoCloseable {
    private final ServerSocket listener;
    private final byte[] from;
    private final byte[] to;
    private final List<Socket> sockets = new CopyOnWriteArrayList<>();

    RewritingProxy(InetSocketAddress server, byte[] from, byte[] to) throws IOException {
        this.from = from;
        this.to = to;
        listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        start(() -> {
            while (true) {
                Socket client = listener.accept();
                Socket upstream = new Socket(server.getAddress(), server.getPort());
                sockets.addAll(List.of(client, upstream));
                start(() -> copy(client, upstream, true));
                start(() -> copy(upstream, client, false));
            }
        });
    }

    String uri() {
        return "mongodb://127.0.0.1:" + listener.getLocalPort() + "/?directConnection=true";
    }

    private void copy(Socket source, Socket target, boolean rewrites) throws IOException {
        DataInputStream in = new DataInputStream(source.getInputStream());
        OutputStream out = target.getOutputStream();
        while (true) {
            // A message begins with its length, in the byte order of BSON.
            byte[] head = in.readNBytes(4);
            if (head.length < 4) {
                target.close();
                return;
            }
            int length = ByteBuffer.wrap(head).order(ByteOrder.LITTLE_ENDIAN).getInt();
            byte[] message = Arrays.copyOf(head, length);
            in.readFully(message, 4, length - 4);
            out.write(rewrites ? rewritten(message) : message);
            out.flush();
        }
    }

    private byte[] rewritten(byte[] message) {
        for (int i = 0; i + from.length <= message.length; i++) {
            if (Arrays.equals(message, i, i + from.length, from, 0, from.length)) {
                System.arraycopy(to, 0, message, i, to.length);
            }
        }
        return message;
    }

    private static void start(Body body) {
        Thread thread = new Thread(() -> {
            try {
                body.run();
            } catch (IOException e) {
                // The sockets are closed at the end of the test.
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void close() throws IOException {
        listener.close();
        for (Socket socket : sockets) {
            socket.close();
        }
    }

    private interface Body {
        void run() throws IOException;
    }
}
