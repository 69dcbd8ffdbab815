package chaos_test

import (
	"bufio"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// echo is a server that counts lines and sends them back.
func echo(t *testing.T) (addr string, lines *atomic.Int64) {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lines = &atomic.Int64{}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				for r := bufio.NewReader(conn); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					lines.Add(1)
					if _, err := io.WriteString(conn, line); err != nil {
						return
					}
				}
			})
		}
	})
	// Registered before the links, so that their connections end first.
	t.Cleanup(func() { _ = ln.Close(); serving.Wait() })
	return ln.Addr().String(), lines
}

// ask sends a line and reports whether it came back within a moment.
func ask(conn net.Conn, patience time.Duration) bool {
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		return false
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && line == "hello\n"
}

// The faults are what they are called: a lost direction is lost and the other is not, a
// refused connection is refused, and everything can be mended.
func TestLinksFailAsTheySay(t *testing.T) {
	addr, lines := echo(t)
	l := newLink(t, seeded(t), addr)
	dial := func() net.Conn {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", l.addr)
		if err != nil {
			return nil
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	works := func(when string) net.Conn {
		conn := dial()
		if conn == nil || !ask(conn, 10*time.Second) {
			t.Fatalf("%s: no answer", when)
		}
		return conn
	}
	conn := works("at first")
	l.delay(t, 20*time.Millisecond)
	began := time.Now()
	if !ask(conn, 10*time.Second) || time.Since(began) < 20*time.Millisecond {
		t.Errorf("an answer over two ways of 20 ms +- 10 ms came after %s", time.Since(began))
	}
	for _, way := range []direction{requests, answers} {
		conn, seen := works("before "+string(way)+" are lost"), lines.Load()
		l.lose(t, way)
		if ask(conn, 200*time.Millisecond) {
			t.Errorf("%s are lost, and an answer came", way)
		}
		if arrived := lines.Load() > seen; arrived != (way == answers) {
			t.Errorf("%s are lost; the server got the request: %t", way, arrived)
		}
		l.find(t, way)
		works("after " + string(way) + " were lost")
	}
	conn = works("before connections are refused")
	l.refuse()
	if ask(conn, time.Second) || dial() != nil {
		t.Error("a link that refuses goes on")
	}
	l.accept(t)
	works("after connections were refused")
}
