package chaos_test

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testenv"
)

// process is one role in a process of its own.
type process struct {
	name string
	args []string
	url  string
	cmd  *exec.Cmd
	done chan struct{}

	mu    sync.Mutex
	lines []string // the last ones it logged
}

// keptLines of a process are printed when its test fails.
const keptLines = 40

// listening finds the address in the line that a server logs when it accepts.
var listening = regexp.MustCompile(`msg="?serving"? address=(\S+)`)

// start runs weir and returns when it serves. However the test ends, so does the
// process: it is killed by the test's cleanup, and by the kernel if the test is.
func start(tb testing.TB, name string, args ...string) *process {
	tb.Helper()
	p := &process{name: name, args: args}
	tb.Cleanup(func() {
		p.kill(tb)
		if tb.Failed() {
			tb.Logf("last lines of %s:\n%s", name, p.log())
		}
	})
	p.launch(tb)
	return p
}

// launch starts the process, or starts it again after kill.
func (p *process) launch(tb testing.TB) {
	tb.Helper()
	binary := testenv.Binary(tb, "github.com/weirhq/weir/cmd/weir")
	// Not tb.Context(): that ends before the cleanup.
	p.cmd = exec.CommandContext(context.Background(), binary, p.args...)
	p.cmd.SysProcAttr = ownGroup()
	logs, err := p.cmd.StderrPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	served, done := make(chan string, 1), make(chan struct{})
	p.done = done
	go func() {
		defer close(done)
		p.read(logs, served)
	}()
	select {
	case address := <-served:
		p.url = "http://" + address
	case <-done:
		tb.Fatalf("%s ended instead of serving:\n%s", p.name, p.log())
	case <-time.After(time.Minute):
		tb.Fatalf("%s does not serve:\n%s", p.name, p.log())
	}
}

func (p *process) read(logs io.Reader, served chan<- string) {
	for lines := bufio.NewScanner(logs); lines.Scan(); {
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			select {
			case served <- m[1]:
			default:
			}
		}
		p.mu.Lock()
		p.lines = append(p.lines, lines.Text())
		p.lines = p.lines[max(0, len(p.lines)-keptLines):]
		p.mu.Unlock()
	}
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// kill ends the process at once, as a crash does, and waits until it is gone. A process
// that was killed already stays so.
func (p *process) kill(tb testing.TB) {
	tb.Helper()
	if p.cmd == nil || p.cmd.Process == nil || p.cmd.ProcessState != nil {
		return
	}
	select {
	case <-p.done:
		tb.Errorf("%s ended by itself", p.name)
	default:
	}
	p.signal(tb, syscall.SIGKILL)
	<-p.done
	_ = p.cmd.Wait() // the error says that it was killed
}

// signal sends to the whole group, so that nothing it may have started is left.
func (p *process) signal(tb testing.TB, s syscall.Signal) {
	tb.Helper()
	if err := syscall.Kill(-p.cmd.Process.Pid, s); err != nil {
		tb.Errorf("%s: %s: %v", p.name, s, err)
	}
}
