package lua_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// fakeNode is a Redis Cluster primary that answers script calls as a test says. It
// knows just the commands by which a client comes to know a cluster.
type fakeNode struct {
	listener net.Listener
	addr     string
	// slots is what CLUSTER SLOTS answers.
	slots atomic.Pointer[string]
	// script answers EVALSHA; it may close the connection, or wait for quit.
	script func(n *fakeNode, conn net.Conn)
	// user and password, when set, must come before anything else.
	user, password string
	// slowLoads is how many connections get no answer to a script they load.
	slowLoads atomic.Int64

	quit chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	mu       sync.Mutex
	scripts  int // calls of scripts
	refused  int // commands without the password
	accepted int
	conns    map[net.Conn]bool
}

// newFakeNode starts a node that owns all slots, after the changes. config is nil for plain TCP.
func newFakeNode(t *testing.T, config *tls.Config, script func(n *fakeNode, conn net.Conn), change ...func(n *fakeNode)) *fakeNode {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	n := &fakeNode{
		listener: l, addr: l.Addr().String(), script: script,
		quit: make(chan struct{}), conns: map[net.Conn]bool{},
	}
	slots := slotsReply(slotRange{0, 16383, n.addr})
	n.slots.Store(&slots)
	for _, c := range change {
		c(n)
	}
	n.wg.Go(n.accept)
	t.Cleanup(n.stop)
	return n
}

type slotRange struct {
	from, to int
	addr     string
}

func slotsReply(ranges ...slotRange) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(ranges))
	for _, r := range ranges {
		host, port, _ := net.SplitHostPort(r.addr)
		fmt.Fprintf(&b, "*3\r\n:%d\r\n:%d\r\n*3\r\n$%d\r\n%s\r\n:%s\r\n$1\r\nx\r\n", r.from, r.to, len(host), host, port)
	}
	return b.String()
}

// stop ends the node; calls that hang fail then. Doing it twice is safe.
func (n *fakeNode) stop() {
	n.once.Do(func() { close(n.quit) })
	_ = n.listener.Close()
	n.mu.Lock()
	for c := range n.conns {
		_ = c.Close()
	}
	n.mu.Unlock()
	n.wg.Wait()
}

func (n *fakeNode) scriptCalls() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.scripts
}

func (n *fakeNode) accept() {
	for {
		conn, err := n.listener.Accept()
		if err != nil {
			return
		}
		n.mu.Lock()
		n.conns[conn] = true
		n.accepted++
		n.mu.Unlock()
		n.wg.Go(func() { n.serve(conn) })
	}
}

func (n *fakeNode) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		n.mu.Lock()
		delete(n.conns, conn)
		n.mu.Unlock()
	}()
	r, known := bufio.NewReader(conn), n.password == ""
	for {
		args, err := readCommand(r)
		if err != nil {
			return
		}
		name := strings.ToUpper(args[0])
		line := strings.Join(args, " ")
		if !known && (strings.Contains(line, n.user+" "+n.password)) && (name == "AUTH" || name == "HELLO") {
			known = true
		}
		if !known {
			n.mu.Lock()
			n.refused++
			n.mu.Unlock()
			_, _ = io.WriteString(conn, "-NOAUTH Authentication required.\r\n")
			continue
		}
		if name == "EVALSHA" {
			n.mu.Lock()
			n.scripts++
			n.mu.Unlock()
			n.script(n, conn)
			continue
		}
		_, _ = io.WriteString(conn, n.answer(name, args))
	}
}

func (n *fakeNode) answer(name string, args []string) string {
	switch name {
	case "HELLO":
		return "%1\r\n$5\r\nproto\r\n:3\r\n"
	case "AUTH", "SET", "ASKING":
		return "+OK\r\n"
	case "CLUSTER":
		return *n.slots.Load()
	case "SETNX":
		return ":0\r\n"
	case "GET":
		return "$2\r\n16\r\n"
	case "SCRIPT":
		if n.slowLoads.Add(-1) >= 0 {
			<-n.quit // this connection is not answered any more
		}
		return "$40\r\n" + strings.Repeat("0", 40) + "\r\n"
	case "PING":
		return "+PONG\r\n"
	}
	return "-ERR unknown command " + args[0] + "\r\n"
}

func readCommand(r *bufio.Reader) ([]string, error) {
	number := func(prefix byte) (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if line[0] != prefix {
			return 0, fmt.Errorf("unexpected %q", line)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	count, err := number('*')
	if err != nil {
		return nil, err
	}
	args := make([]string, count)
	for i := range args {
		size, err := number('$')
		if err != nil {
			return nil, err
		}
		buf := make([]byte, size+2)
		if _, err := io.ReadFull(r, buf); err != nil {
			return nil, err
		}
		args[i] = string(buf[:size])
	}
	return args, nil
}
