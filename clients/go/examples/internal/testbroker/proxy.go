package testbroker

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"testing"

	"github.com/postrider/postrider/clients/go/internal/mongotest"
)

// Proxy stands between a consumer and RabbitMQ. It loses an acknowledgement, and then all that the consumer sends.
type Proxy struct {
	URI string
	// Lost is closed when an acknowledgement was lost: what it acknowledges has been committed, and RabbitMQ does not
	// know.
	Lost chan struct{}
}

// NewProxy lets this number of acknowledgements pass.
func NewProxy(t testing.TB, acknowledgements int) *Proxy {
	t.Helper()
	uri, err := url.Parse(mongotest.Env(t, "POSTRIDER_TEST_AMQP_URI"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	server := uri.Host
	uri.Host = listener.Addr().String()
	p := &Proxy{URI: uri.String(), Lost: make(chan struct{})}
	go func() {
		near, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = near.Close() }()
		far, err := net.DialTimeout("tcp", server, connectTimeout)
		if err != nil {
			return
		}
		defer func() { _ = far.Close() }()
		go func() { _, _ = io.Copy(near, far) }()
		p.forward(near, far, acknowledgements)
		_, _ = io.Copy(io.Discard, near) // until the consumer is killed
	}()
	return p
}

// forward forwards frames until one acknowledgement more than permitted.
func (p *Proxy) forward(from io.Reader, to io.Writer, acknowledgements int) {
	const frameHeader, protocolHeader, methodFrame = 7, 8, 1
	const basicAck = 60<<16 | 80 // class and method
	if _, err := io.CopyN(to, from, protocolHeader); err != nil {
		return
	}
	for {
		frame := make([]byte, frameHeader)
		if _, err := io.ReadFull(from, frame); err != nil {
			return
		}
		rest := make([]byte, binary.BigEndian.Uint32(frame[3:])+1) // with the byte that ends it
		if _, err := io.ReadFull(from, rest); err != nil {
			return
		}
		if frame[0] == methodFrame && binary.BigEndian.Uint32(rest) == basicAck {
			if acknowledgements == 0 {
				close(p.Lost)
				return
			}
			acknowledgements--
		}
		if _, err := to.Write(append(frame, rest...)); err != nil {
			return
		}
	}
}
