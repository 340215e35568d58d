// Package testprogram runs the programs of the examples as processes of their own, which tests can kill.
package testprogram

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/clients/go/internal/mongotest"
)

// asProgram is set where the binary of a test is the program that it tests: to the process id of the test.
const asProgram = "POSTRIDER_TEST_AS_PROGRAM"

// Main runs the tests, or the program where Start has started this process. TestMain calls it.
func Main(tests *testing.M, program func()) {
	parent := os.Getenv(asProgram)
	if parent == "" {
		os.Exit(tests.Run())
	}
	go func() {
		// A test that runs out of time ends without its cleanups.
		for strconv.Itoa(os.Getppid()) == parent {
			time.Sleep(time.Second)
		}
		os.Exit(1)
	}()
	program()
}

// Program is a running process.
type Program struct {
	t       testing.TB
	process *exec.Cmd
	output  *buffer
	ended   chan struct{}
}

// Start runs the program with variables such as "QUEUE=orders". It ends with the test.
func Start(t testing.TB, stdin io.Reader, environment ...string) *Program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &Program{t: t, process: exec.Command(self), output: &buffer{}, ended: make(chan struct{})}
	p.process.Env = append(append(os.Environ(), fmt.Sprintf("%s=%d", asProgram, os.Getpid())), environment...)
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
			t.Logf("output of the program:\n%s", p.Output())
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
