// Package postridertest runs Postrider in the tests of an application, so that they can check what was sent.
//
//	relay := postridertest.Start(t, "mongodb://127.0.0.1:27017/shop_test?replicaSet=rs0")
//	placeOrder(t.Context(), "order-7")
//	relay.Await(1)
//	created := relay.ByKey("order-7")[0]
//
// No broker is needed: messages are written to a file. The binary is the one that POSTRIDER_BIN names, or else
// "postrider" on PATH.
package postridertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	defaultTimeout = 30 * time.Second
	pollInterval   = 20 * time.Millisecond
	shutdownGrace  = 15 * time.Second
	logTailBytes   = 4096
)

// Relay is a running Postrider. Its methods fail the test on an error; call them from the goroutine of the test.
type Relay struct {
	t        testing.TB
	timeout  time.Duration
	messages string // the file
	process  *exec.Cmd
	ended    chan struct{}
	stop     sync.Once
	log      *logBuffer
}

// Option configures a Relay.
type Option func(*config)

type config struct {
	binary   string
	timeout  time.Duration
	settings []string
}

// WithBinary names the binary.
func WithBinary(path string) Option { return func(c *config) { c.binary = path } }

// WithTimeout sets how long Start waits for readiness and Await for messages. The default is 30 s.
func WithTimeout(timeout time.Duration) Option { return func(c *config) { c.timeout = timeout } }

// WithSetting sets a key of Postrider's configuration, as in WithSetting("outbox.collection_prefix", "shop_").
func WithSetting(key, value string) Option {
	return func(c *config) { c.settings = append(c.settings, "--set", key+"="+value) }
}

// Start starts Postrider on the database that the URI names, and waits until it is ready. It creates the collections
// and indexes of the outbox. It stops at the end of the test.
func Start(t testing.TB, mongoURI string, options ...Option) *Relay {
	t.Helper()
	c := config{binary: os.Getenv("POSTRIDER_BIN"), timeout: defaultTimeout}
	if c.binary == "" {
		c.binary = "postrider"
	}
	for _, option := range options {
		option(&c)
	}
	folder := t.TempDir()
	r := &Relay{
		t: t, timeout: c.timeout, messages: filepath.Join(folder, "messages.ndjson"),
		ended: make(chan struct{}), log: &logBuffer{},
	}
	settings := filepath.Join(folder, "postrider.json")
	if err := r.writeSettings(settings, mongoURI); err != nil {
		t.Fatal(err)
	}
	r.process = exec.Command(c.binary, append([]string{"run", "--config", settings}, c.settings...)...)
	r.process.Env = environment()
	r.process.Stderr = r.log
	if err := r.process.Start(); err != nil {
		t.Fatalf("postridertest: failed to start %s: %v; "+
			"set POSTRIDER_BIN to the binary, or put it on PATH", c.binary, err)
	}
	go func() {
		defer close(r.ended)
		_ = r.process.Wait()
	}()
	t.Cleanup(r.Stop)
	r.wait("readiness", r.isReady)
	return r
}

// Await waits until at least n messages were sent, and returns all.
func (r *Relay) Await(n int) []Message {
	r.t.Helper()
	var messages []Message
	r.wait(fmt.Sprintf("%d messages", n), func() (bool, string) {
		messages = r.Messages()
		return len(messages) >= n, fmt.Sprintf("%d messages were sent", len(messages))
	})
	return messages
}

// Messages returns the messages that were sent until now, in their order. A message that was sent again, as after a
// crash, is in the list once.
func (r *Relay) Messages() []Message {
	r.t.Helper()
	content, err := os.ReadFile(r.messages)
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	var messages []Message
	seen := make(map[string]bool)
	for line := range bytes.Lines(content) {
		var message Message
		// The last line may not be complete yet.
		if !bytes.HasSuffix(line, []byte("\n")) || json.Unmarshal(line, &message) != nil || seen[message.ID] {
			continue
		}
		seen[message.ID] = true
		messages = append(messages, message)
	}
	return messages
}

// ByKey returns the messages of a key that were sent until now, in their order.
func (r *Relay) ByKey(key string) []Message {
	r.t.Helper()
	return slices.DeleteFunc(r.Messages(), func(m Message) bool { return m.Key == nil || *m.Key != key })
}

// Stop ends the process in order. What it sent can still be read, until the test ends.
func (r *Relay) Stop() {
	r.stop.Do(func() {
		_ = r.process.Process.Signal(syscall.SIGTERM)
		select {
		case <-r.ended:
		case <-time.After(shutdownGrace):
			_ = r.process.Process.Kill()
			<-r.ended
		}
	})
}

func (r *Relay) writeSettings(path, mongoURI string) error {
	settings, err := json.Marshal(map[string]any{
		"mongo": map[string]any{"uri": mongoURI},
		"sinks": map[string]any{"test": map[string]any{"kind": "file", "path": r.messages}},
		"ops":   map[string]any{"listen": "127.0.0.1:0"},
		"log":   map[string]any{"format": "json"},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, settings, 0o600) // the URI may have a password
}

// isReady asks /readyz, whose address is in the log.
func (r *Relay) isReady() (bool, string) {
	for line := range strings.Lines(r.log.String()) {
		var entry struct{ Message, Address string }
		if json.Unmarshal([]byte(line), &entry) != nil || !strings.Contains(entry.Message, "/readyz") {
			continue
		}
		response, err := http.Get("http://" + entry.Address + "/readyz")
		if err != nil {
			return false, err.Error()
		}
		defer func() { _ = response.Body.Close() }()
		reason, _ := io.ReadAll(response.Body)
		return response.StatusCode == http.StatusOK, string(reason)
	}
	return false, "it serves no /readyz yet"
}

// wait asks until the answer is yes, the process has ended or time is up.
func (r *Relay) wait(what string, done func() (bool, string)) {
	r.t.Helper()
	for deadline := time.Now().Add(r.timeout); ; {
		ok, state := done()
		if ok {
			return
		}
		select {
		case <-r.ended:
			r.t.Fatalf("postridertest: postrider ended before %s: %v; its log:\n%s",
				what, r.process.ProcessState, r.log.tail())
		case <-time.After(pollInterval):
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("postridertest: no %s within %v: %s; its log:\n%s", what, r.timeout, state, r.log.tail())
		}
	}
}

// environment is that of the test without Postrider's own variables, which would change its configuration.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "POSTRIDER_") })
}

// logBuffer keeps what the process logs.
type logBuffer struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (l *logBuffer) Write(text []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.Write(text)
}

func (l *logBuffer) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.String()
}

func (l *logBuffer) tail() string {
	text := l.String()
	return text[max(0, len(text)-logTailBytes):]
}
