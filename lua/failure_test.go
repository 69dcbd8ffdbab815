package lua_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/lua"
	"github.com/weirhq/weir/quota"
)

// deadline is what a check waits in these tests, slack what a busy machine may add.
const (
	deadline = 150 * time.Millisecond
	slack    = 400 * time.Millisecond
)

func openFake(t *testing.T, n *fakeNode, change ...func(*lua.Config)) *lua.Store {
	t.Helper()
	cfg := lua.Config{Addrs: []string{n.addr}, ReadTimeout: 300 * time.Millisecond, DialTimeout: 300 * time.Millisecond}
	for _, c := range change {
		c(&cfg)
	}
	s, err := lua.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func oneToken(s *lua.Store) quota.Attempt {
	l := limit(10, 10, time.Minute)
	return quota.Attempt{Stripe: 1, Cost: token, Entries: []quota.Entry{
		{Bucket: s.BucketKey(1, "k"), Algorithm: quota.TokenBucket, Limit: l, Base: l},
	}}
}

// Case 55: whatever a node answers, a check ends within its deadline with an error
// of the right kind, and is never a silent yes.
func TestBadRepliesAreErrors(t *testing.T) {
	t.Parallel()
	say := func(text string) func(*fakeNode, net.Conn) {
		return func(n *fakeNode, conn net.Conn) {
			_, _ = io.WriteString(conn, strings.ReplaceAll(text, "SELF", n.addr))
		}
	}
	shut := func(text string) func(*fakeNode, net.Conn) {
		return func(_ *fakeNode, conn net.Conn) {
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}
	for name, tc := range map[string]struct {
		reply func(*fakeNode, net.Conn)
		kind  string
		ran   bool // whether the call may have run
		once  bool // whether it must have been sent only once
	}{
		"moved to itself":  {say("-MOVED 1 SELF\r\n"), "moved", false, false},
		"ask itself":       {say("-ASK 1 SELF\r\n"), "moved", false, false},
		"tryagain":         {say("-TRYAGAIN Multiple keys request during rehashing of slot\r\n"), "tryagain", false, false},
		"loading":          {say("-LOADING Redis is loading the dataset in memory\r\n"), "loading", false, false},
		"busy":             {say("-BUSY Redis is busy running a script\r\n"), "busy", false, true},
		"out of memory":    {say("-OOM command not allowed when used memory > 'maxmemory'.\r\n"), "oom", false, true},
		"cannot persist":   {say("-MISCONF Errors writing to the AOF file\r\n"), "misconf", false, true},
		"read only":        {say("-READONLY You can't write against a read only replica.\r\n"), "readonly", false, false},
		"no script ever":   {say("-NOSCRIPT No matching script.\r\n"), "noscript", false, false},
		"cluster down":     {say("-CLUSTERDOWN The cluster is down\r\n"), "clusterdown", false, false},
		"primary down":     {say("-MASTERDOWN Link with MASTER is down\r\n"), "clusterdown", false, false},
		"not allowed":      {say("-NOPERM this user has no permissions\r\n"), "auth", false, true},
		"crossed slots":    {say("-CROSSSLOT Keys in request don't hash to the same slot\r\n"), "crossslot", false, true},
		"script fault":     {say("-ERR user_script:1: attempt to index a nil value\r\n"), "script", true, true},
		"number":           {say(":1\r\n"), "script", true, true},
		"nothing":          {say("$-1\r\n"), "script", true, true},
		"empty list":       {say("*0\r\n"), "script", true, true},
		"list of text":     {say("*2\r\n$1\r\na\r\n$1\r\nb\r\n"), "script", true, true},
		"list of nothings": {say("*2\r\n$-1\r\n$-1\r\n"), "script", true, true},
		"short list":       {say("*3\r\n:1\r\n:5\r\n:1\r\n"), "script", true, true},
		"long list":        {say("*8\r\n:1\r\n:5\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n"), "script", true, true},
		"no such entry":    {say("*2\r\n:-2\r\n:7\r\n"), "script", false, true},
		"bad text":         {say("$5\r\n1 x 3\r\n"), "script", false, true},
		"garbage":          {shut("\x00\xffhello\r\n"), "", true, true},
		"cut short":        {shut("*7\r\n:1\r\n:1790000"), "connection", true, true},
		"hung up":          {shut(""), "connection", true, true},
		"hangs":            {func(*fakeNode, net.Conn) {}, "timeout", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newFakeNode(t, nil, tc.reply)
			s := openFake(t, n)
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			began := time.Now()
			out, err := s.Acquire(ctx, oneToken(s))
			took := time.Since(began)
			var failure *lua.Error
			if !errors.As(err, &failure) || !errors.Is(err, quota.ErrUnavailable) {
				t.Fatalf("%+v, %v: want an *Error", out, err)
			}
			if out.Allowed || len(out.Verdicts) > 0 {
				t.Errorf("an error, and an outcome: %+v", out)
			}
			if tc.kind != "" && failure.Kind() != tc.kind {
				t.Errorf("kind %s (%v), want %s", failure.Kind(), err, tc.kind)
			}
			if tc.ran && !failure.MayHaveRun() || !tc.ran && failure.MayHaveRun() && took < deadline {
				t.Errorf("may have run: %t (%v)", failure.MayHaveRun(), err)
			}
			if took > deadline+slack {
				t.Errorf("took %s, the deadline is %s", took, deadline)
			}
			if calls := n.scriptCalls(); tc.once && calls != 1 {
				t.Errorf("sent %d times, want once", calls)
			}
		})
	}
}

// A remembered outcome of another shape is the caller's mistake.
func TestRememberedOutcomeOfAnotherRequest(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t, nil, func(_ *fakeNode, conn net.Conn) { _, _ = io.WriteString(conn, "$9\r\n1 5 1 1 1\r\n") })
	s := openFake(t, n)
	a := oneToken(s)
	a.RequestID = "r"
	if _, err := s.Acquire(t.Context(), a); !errors.Is(err, quota.ErrRequestID) {
		t.Errorf("%v, want ErrRequestID", err)
	}
}

// What no script can decide does not reach one.
func TestInvalidAttemptsAreRefused(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t, nil, func(_ *fakeNode, conn net.Conn) { _, _ = io.WriteString(conn, ":1\r\n") })
	s := openFake(t, n)
	for name, change := range map[string]func(a *quota.Attempt){
		"stripe below":       func(a *quota.Attempt) { a.Stripe = -1 },
		"stripe above":       func(a *quota.Attempt) { a.Stripe = s.Stripes() },
		"negative cost":      func(a *quota.Attempt) { a.Cost = -1 },
		"cost above all":     func(a *quota.Attempt) { a.Cost = quota.MaxTokens + 1 },
		"unknown algorithm":  func(a *quota.Attempt) { a.Entries[0].Algorithm = quota.Concurrency },
		"no period":          func(a *quota.Attempt) { a.Entries[0].Limit.Period = 0 },
		"no refill":          func(a *quota.Attempt) { a.Entries[0].Limit.Refill = 0 },
		"part of a log slot": func(a *quota.Attempt) { a.Entries[0].Algorithm = quota.SlidingLog; a.Cost = 1 },
	} {
		a := oneToken(s)
		change(&a)
		if _, err := s.Acquire(t.Context(), a); !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if err := s.Refund(t.Context(), 1, []quota.Refund{{Entry: oneToken(s).Entries[0], Amount: -1}}); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("negative refund: %v, want ErrInvalid", err)
	}
	if out, err := s.Acquire(t.Context(), quota.Attempt{Cost: token}); err != nil || !out.Allowed {
		t.Errorf("no quotas: %+v, %v, want a yes", out, err)
	}
	if n.scriptCalls() != 0 {
		t.Errorf("%d script calls", n.scriptCalls())
	}
}

// The queue of a shard is bounded: when it is full, further checks fail at once, and
// calls that nobody waits for make room.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 2)
	n := newFakeNode(t, nil, func(n *fakeNode, _ net.Conn) {
		arrived <- struct{}{}
		<-n.quit
	})
	s := openFake(t, n, func(c *lua.Config) { c.QueueLimit, c.BatchLimit, c.ReadTimeout = 10, 1, 20*time.Second })
	defer n.stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const calls = 40
	errs := make(chan error, calls)
	try := func() {
		_, err := s.Acquire(ctx, oneToken(s))
		errs <- err
	}
	go try()
	<-arrived
	go try()
	<-arrived
	for range calls - 2 {
		go try()
	}
	// Two batches of one fly and ten wait: the others are told at once.
	for range calls - 12 {
		if err := <-errs; !errors.Is(err, quota.ErrOverloaded) {
			t.Errorf("%v, want ErrOverloaded", err)
		}
	}
	cancel()
	for range 12 {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want context.Canceled", err)
		}
	}
	late, cancelLate := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancelLate()
	if _, err := s.Acquire(late, oneToken(s)); errors.Is(err, quota.ErrOverloaded) {
		t.Errorf("calls that nobody waits for still fill the queue: %v", err)
	}
}

// A caller that leaves while its call is queued knows that it was never sent.
func TestQueuedCallThatIsLeftIsNeverSent(t *testing.T) {
	t.Parallel()
	release, arrived := make(chan struct{}), make(chan struct{}, 3)
	n := newFakeNode(t, nil, func(n *fakeNode, conn net.Conn) {
		arrived <- struct{}{}
		select {
		case <-release:
		case <-n.quit:
		}
		_, _ = io.WriteString(conn, "*7\r\n:1\r\n:5\r\n:1\r\n:1\r\n:0\r\n:0\r\n:0\r\n")
	})
	s := openFake(t, n, func(c *lua.Config) { c.BatchLimit = 1; c.ReadTimeout = 20 * time.Second })
	first := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := s.Acquire(t.Context(), oneToken(s))
			first <- err
		}()
	}
	<-arrived
	<-arrived
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := s.Acquire(ctx, oneToken(s))
	var failure *lua.Error
	if !errors.As(err, &failure) || failure.Kind() != "timeout" || failure.MayHaveRun() {
		t.Errorf("%v (may have run: %t), want a timeout that did not run", err, failure != nil && failure.MayHaveRun())
	}
	close(release)
	for range 2 {
		if err := <-first; err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if calls := n.scriptCalls(); calls != 2 {
		t.Errorf("%d calls reached the node, want 2", calls)
	}
}

// Case 62: TLS and the user are used on every link, those to nodes that only the
// cluster told of too.
func TestEveryLinkHasTLSAndTheUser(t *testing.T) {
	t.Parallel()
	serverTLS, clientTLS := certificates(t)
	yes := func(_ *fakeNode, conn net.Conn) {
		_, _ = io.WriteString(conn, "*7\r\n:1\r\n:5\r\n:1\r\n:1\r\n:0\r\n:0\r\n:0\r\n")
	}
	var nodes []*fakeNode
	for range 3 {
		nodes = append(nodes, newFakeNode(t, serverTLS, yes, func(n *fakeNode) { n.user, n.password = "weir", "secret" }))
	}
	slots := slotsReply(slotRange{0, 5000, nodes[0].addr}, slotRange{5001, 10000, nodes[1].addr}, slotRange{10001, 16383, nodes[2].addr})
	for _, n := range nodes {
		n.slots.Store(&slots)
	}
	s := openFake(t, nodes[0], func(c *lua.Config) {
		c.TLS, c.Username, c.Password = clientTLS, "weir", "secret"
	})
	for stripe := range s.Stripes() {
		a := oneToken(s)
		a.Stripe, a.Entries[0].Bucket = stripe, s.BucketKey(stripe, "k")
		if _, err := s.Acquire(t.Context(), a); err != nil {
			t.Errorf("stripe %d: %v", stripe, err)
		}
	}
	for i, n := range nodes {
		if n.scriptCalls() == 0 {
			t.Errorf("node %d was not asked", i)
		}
		if n.refused > 0 {
			t.Errorf("node %d got %d commands without the password", i, n.refused)
		}
	}
	wrong, err := lua.Open(t.Context(), lua.Config{Addrs: []string{nodes[0].addr}, TLS: clientTLS, Username: "weir", Password: "guess", DialTimeout: time.Second})
	if err == nil {
		_ = wrong.Close()
		t.Fatal("opened with the wrong password")
	}
	if strings.Contains(err.Error(), "guess") {
		t.Errorf("the password is in the error: %v", err)
	}
	if plain, err := lua.Open(t.Context(), lua.Config{Addrs: []string{nodes[0].addr}, Username: "weir", Password: "secret", DialTimeout: time.Second, ReadTimeout: 300 * time.Millisecond}); err == nil {
		_ = plain.Close()
		t.Error("opened without TLS")
	}
}

// certificates returns the two sides of TLS on loopback.
func certificates(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	server = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
	return server, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// A Redis that is busy while everything starts does not keep a node from starting; one
// that never answers is given up.
func TestStartWaitsForABusyRedis(t *testing.T) {
	t.Parallel()
	busy := newFakeNode(t, nil, func(*fakeNode, net.Conn) {}, func(n *fakeNode) { n.slowLoads.Store(2) })
	openFake(t, busy)
	dead := newFakeNode(t, nil, func(*fakeNode, net.Conn) {}, func(n *fakeNode) { n.slowLoads.Store(1 << 30) })
	_, err := lua.Open(t.Context(), lua.Config{Addrs: []string{dead.addr}, ReadTimeout: 50 * time.Millisecond, DialTimeout: time.Second})
	if err == nil || !strings.Contains(err.Error(), "load scripts") {
		t.Errorf("a Redis that never answers: %v", err)
	}
}
