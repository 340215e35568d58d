// Package testprogram runs the programs of the examples as processes of their own, which tests can kill.
package testprogram

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/postrider/postrider/clients/go/internal/mongotest"
)

// Build builds the program in the working folder of the test, and returns its path.
func Build(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if output, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, output)
	}
	return path
}

// Program is a running process.
type Program struct {
	t       testing.TB
	process *exec.Cmd
	output  *buffer
	ended   chan struct{}
}

// Start runs a program with variables such as "QUEUE=orders". It ends with the test.
func Start(t testing.TB, path string, stdin io.Reader, environment ...string) *Program {
	t.Helper()
	p := &Program{t: t, process: exec.Command(path), output: &buffer{}, ended: make(chan struct{})}
	p.process.Env = append(os.Environ(), environment...)
	p.process.Stdin, p.process.Stdout, p.process.Stderr = stdin, p.output, p.output
	if err := p.process.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.process.Wait()
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("output of %s:\n%s", filepath.Base(t.Name()), p.Output())
		}
	})
	return p
}

// Kill sends SIGKILL, and waits for the end.
func (p *Program) Kill() {
	_ = p.process.Process.Kill()
	<-p.ended
}

// Stop sends a signal that the program handles, and fails the test unless it ends with 0.
func (p *Program) Stop(signal os.Signal) {
	p.t.Helper()
	if err := p.process.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
	p.Wait()
}

// Wait waits for the end, and fails the test unless it is 0.
func (p *Program) Wait() {
	p.t.Helper()
	mongotest.Eventually(p.t, "the program ends", func() bool {
		select {
		case <-p.ended:
			return true
		default:
			return false
		}
	})
	if !p.process.ProcessState.Success() {
		p.t.Fatalf("the program ended with %v:\n%s", p.process.ProcessState, p.Output())
	}
}

// Output returns what was written until now, on standard output and standard error.
func (p *Program) Output() string { return p.output.String() }

// Prints reports whether a line with this text was written.
func (p *Program) Prints(text string) bool { return strings.Contains(p.Output(), text) }

type buffer struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (b *buffer) Write(text []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.Write(text)
}

func (b *buffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.String()
}
