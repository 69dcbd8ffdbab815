package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// command sends one command to the Redis node at addr and returns its reply as
// text: nested replies are flattened, one element per line. It is enough for
// health checks and administration, so that go-redis stays inside package lua.
func command(ctx context.Context, addr string, args ...string) (string, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(10 * time.Second)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(conn, request.String()); err != nil {
		return "", err
	}
	reply, err := readReply(bufio.NewReader(conn))
	if err != nil {
		return "", fmt.Errorf("%s on %s: %w", strings.Join(args, " "), addr, err)
	}
	return reply, nil
}

// readReply reads one reply of RESP2.
func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return "", errors.New("empty reply")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+', ':':
		return rest, nil
	case '-':
		return "", errors.New(rest)
	case '$', '*':
		n, err := strconv.Atoi(rest)
		if err != nil {
			return "", fmt.Errorf("reply %q: %w", line, err)
		}
		if n < 0 {
			return "", nil
		}
		if kind == '*' {
			return readArray(r, n)
		}
		buf := make([]byte, n+len("\r\n"))
		if _, err := io.ReadFull(r, buf); err != nil {
			return "", err
		}
		return string(buf[:n]), nil
	}
	return "", fmt.Errorf("unknown reply %q", line)
}

func readArray(r *bufio.Reader, n int) (string, error) {
	parts := make([]string, n)
	for i := range parts {
		part, err := readReply(r)
		if err != nil {
			return "", err
		}
		parts[i] = part
	}
	return strings.Join(parts, "\n"), nil
}
