package file_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/file"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/quota"
)

// quiet is long, so that no step of a change that belongs together is taken
// for the end of it on a busy machine.
const quiet = 250 * time.Millisecond

// parse reads one policy id per line; "bad" is a mistake.
func parse(data []byte) ([]*quota.Policy, error) {
	var out []*quota.Policy
	for line := range strings.Lines(string(data)) {
		id := strings.TrimSpace(line)
		if id == "bad" {
			return nil, fmt.Errorf("%w: line %d: bad", quota.ErrInvalid, len(out)+1)
		}
		out = append(out, &quota.Policy{ID: id})
	}
	return out, nil
}

// counting counts how often the store is asked.
type counting struct {
	*memory.Store
	applies atomic.Int64
}

func (c *counting) Apply(ctx context.Context, ch policystore.Change) (policystore.Applied, error) {
	c.applies.Add(1)
	return c.Store.Apply(ctx, ch)
}

type bundle struct {
	*testing.T
	dir, path string
	store     *counting
	source    *file.Source
	results   chan file.Result
}

// setup lays out a file with the policy "v1" by layout and follows it.
func setup(t *testing.T, poll time.Duration, layout func(dir string) (path string)) *bundle {
	t.Parallel()
	b := &bundle{T: t, dir: t.TempDir(), store: &counting{Store: memory.New(nil)}, results: make(chan file.Result, 100)}
	b.path = layout(b.dir)
	s, err := file.New(file.Config{
		Path: b.path, Store: b.store, Parse: parse, Quiet: quiet, Poll: poll,
		OnResult: func(r file.Result) { b.results <- r },
	})
	require.NoError(t, err)
	b.source = s
	require.NoError(t, s.Load(t.Context()))
	b.next(file.Applied)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return b
}

// plain is the layout of one ordinary file.
func plain(t *testing.T) func(dir string) string {
	return func(dir string) string {
		path := filepath.Join(dir, "policies.yaml")
		write(t, path, "v1\n")
		return path
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.Rename(from, to))
}

// next waits for the next result, which must be the outcome.
func (b *bundle) next(want file.Outcome) file.Result {
	b.Helper()
	select {
	case r := <-b.results:
		require.Equal(b, want, r.Outcome, "%+v", r)
		return r
	case <-time.After(time.Minute): // only bounds a failing test
		b.Fatalf("no result, wanted %s", want)
		return file.Result{}
	}
}

// requireLive checks the policies in force.
func (b *bundle) requireLive(ids ...string) {
	b.Helper()
	s, err := b.store.Current(b.Context())
	require.NoError(b, err)
	require.Equal(b, "file:policies.yaml", s.Author)
	var got []string
	for _, p := range s.Policies {
		got = append(got, p.ID)
	}
	require.Equal(b, ids, got)
}

// TestExactlyOneReload: each way to change a file makes exactly one revision.
// A second change, after the first has been seen, proves that nothing was
// left over from the first.
func TestExactlyOneReload(t *testing.T) {
	configMap := func(t *testing.T) func(dir string) string {
		return func(dir string) string {
			require.NoError(t, os.Mkdir(filepath.Join(dir, "..1"), 0o700))
			write(t, filepath.Join(dir, "..1", "policies.yaml"), "v1\n")
			require.NoError(t, os.Symlink("..1", filepath.Join(dir, "..data")))
			path := filepath.Join(dir, "policies.yaml")
			require.NoError(t, os.Symlink(filepath.Join("..data", "policies.yaml"), path))
			return path
		}
	}
	linked := func(t *testing.T) func(dir string) string {
		return func(dir string) string {
			require.NoError(t, os.Mkdir(filepath.Join(dir, "a"), 0o700))
			require.NoError(t, os.Mkdir(filepath.Join(dir, "b"), 0o700))
			write(t, filepath.Join(dir, "b", "real.yaml"), "v1\n")
			path := filepath.Join(dir, "a", "policies.yaml")
			require.NoError(t, os.Symlink(filepath.Join(dir, "b", "real.yaml"), path))
			return path
		}
	}
	for name, tc := range map[string]struct {
		layout func(t *testing.T) func(dir string) string
		change func(b *bundle, content string)
	}{
		"atomic rename": {plain, func(b *bundle, content string) {
			write(b.T, b.path+".tmp", content)
			rename(b.T, b.path+".tmp", b.path)
		}},
		"truncate and rewrite": {plain, func(b *bundle, content string) {
			f, err := os.OpenFile(b.path, os.O_WRONLY|os.O_TRUNC, 0)
			require.NoError(b, err)
			require.NoError(b, f.Sync())
			for i := range len(content) {
				_, err := f.WriteString(content[i : i+1])
				require.NoError(b, err)
			}
			require.NoError(b, f.Close())
		}},
		"editor keeps a backup": {plain, func(b *bundle, content string) {
			write(b.T, filepath.Join(b.dir, "4913"), "")
			require.NoError(b, os.Remove(filepath.Join(b.dir, "4913")))
			rename(b.T, b.path, b.path+"~")
			write(b.T, b.path, content)
			require.NoError(b, os.Chmod(b.path, 0o640))
			require.NoError(b, os.Remove(b.path+"~"))
		}},
		"delete and create": {plain, func(b *bundle, content string) {
			require.NoError(b, os.Remove(b.path))
			write(b.T, b.path, content)
		}},
		"ConfigMap symlink swap": {configMap, func(b *bundle, content string) {
			dir := filepath.Join(b.dir, ".."+strings.TrimSpace(content))
			require.NoError(b, os.Mkdir(dir, 0o700))
			write(b.T, filepath.Join(dir, "policies.yaml"), content)
			old, err := filepath.EvalSymlinks(filepath.Join(b.dir, "..data"))
			require.NoError(b, err)
			require.NoError(b, os.Symlink(filepath.Base(dir), filepath.Join(b.dir, "..data_tmp")))
			rename(b.T, filepath.Join(b.dir, "..data_tmp"), filepath.Join(b.dir, "..data"))
			require.NoError(b, os.RemoveAll(old))
		}},
		"write behind a link": {linked, func(b *bundle, content string) {
			write(b.T, filepath.Join(b.dir, "b", "real.yaml"), content)
		}},
		"link to another file": {linked, func(b *bundle, content string) {
			next := filepath.Join(b.dir, "b", strings.TrimSpace(content))
			write(b.T, next, content)
			require.NoError(b, os.Symlink(next, b.path+".tmp"))
			rename(b.T, b.path+".tmp", b.path)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, time.Hour, tc.layout(t))
			for n := 2; n <= 4; n++ {
				tc.change(b, fmt.Sprintf("v%d\n", n))
				require.EqualValues(t, n, b.next(file.Applied).Revision)
				b.requireLive(fmt.Sprintf("v%d", n))
			}
			require.EqualValues(t, 4, b.store.applies.Load())
			require.Empty(t, b.results)
		})
	}
}

// TestBadContentIsRefused: whatever is wrong, the old revision stays live, the
// refusal is told once, and a good file heals it.
func TestBadContentIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(b *bundle)
		want  string
	}{
		"invalid":   {func(b *bundle) { write(b.T, b.path, "v2\nbad\n") }, "line 2: bad"},
		"empty":     {func(b *bundle) { write(b.T, b.path, "") }, "is empty"},
		"blank":     {func(b *bundle) { write(b.T, b.path, " \n\t\n") }, "is empty"},
		"too large": {func(b *bundle) { write(b.T, b.path, strings.Repeat("x", file.DefaultMaxBytes+1)) }, "is larger than"},
		"deleted":   {func(b *bundle) { require.NoError(b, os.Remove(b.path)) }, "no such file"},
		"a directory": {func(b *bundle) {
			require.NoError(b, os.Remove(b.path))
			require.NoError(b, os.Mkdir(b.path, 0o700))
		}, "is not a regular file"},
		"a dead link": {func(b *bundle) {
			require.NoError(b, os.Remove(b.path))
			require.NoError(b, os.Symlink("nowhere", b.path))
		}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, time.Hour, plain(t))
			tc.spoil(b)
			r := b.next(file.Refused)
			require.ErrorContains(t, r.Err, tc.want)
			require.ErrorContains(t, r.Err, b.path)
			require.Equal(t, r.Err, b.source.Status().Err)
			require.EqualValues(t, 1, b.source.Status().Revision)
			b.requireLive("v1")

			require.NoError(t, os.RemoveAll(b.path))
			write(t, b.path, "v2\n")
			require.EqualValues(t, 2, b.next(file.Applied).Revision)
			require.NoError(t, b.source.Status().Err)
			b.requireLive("v2")
			require.EqualValues(t, 2, b.store.applies.Load())
		})
	}
}

func TestSameContentMakesNoRevision(t *testing.T) {
	b := setup(t, time.Hour, plain(t))
	// Touched, replaced by a copy, and gone and back: all the same content.
	write(t, b.path, "v1\n")
	write(t, b.path+".tmp", "v1\n")
	rename(t, b.path+".tmp", b.path)
	require.NoError(t, os.Remove(b.path))
	b.next(file.Refused)
	write(t, b.path, "v1\n")
	b.next(file.Unchanged)
	require.NoError(t, b.source.Status().Err)
	require.EqualValues(t, 1, b.store.applies.Load())

	// Other text that says the same is offered to the store, which sees no change.
	write(t, b.path, "v1 \n")
	require.EqualValues(t, 1, b.next(file.Unchanged).Revision)
	require.EqualValues(t, 2, b.store.applies.Load())
	b.requireLive("v1")
}

func TestOtherFilesDoNotMatter(t *testing.T) {
	b := setup(t, time.Hour, plain(t))
	for i := range 50 {
		write(t, filepath.Join(b.dir, "other.log"), strings.Repeat("x", i))
	}
	write(t, b.path, "v2\n")
	b.next(file.Applied)
	require.EqualValues(t, 2, b.store.applies.Load())
}

// TestDirectoryReplaced: the watch is on a directory that no longer has the
// name; the poll notices and watches the new one.
func TestDirectoryReplaced(t *testing.T) {
	b := setup(t, 50*time.Millisecond, func(dir string) string {
		require.NoError(t, os.Mkdir(filepath.Join(dir, "etc"), 0o700))
		return plain(t)(filepath.Join(dir, "etc"))
	})
	require.NoError(t, os.Mkdir(filepath.Join(b.dir, "new"), 0o700))
	write(t, filepath.Join(b.dir, "new", "policies.yaml"), "v2\n")
	rename(t, filepath.Join(b.dir, "etc"), filepath.Join(b.dir, "old"))
	rename(t, filepath.Join(b.dir, "new"), filepath.Join(b.dir, "etc"))
	for {
		// The poll may look just between the two renames.
		r := <-b.results
		if r.Outcome == file.Applied {
			break
		}
		require.ErrorIs(t, r.Err, os.ErrNotExist)
	}
	b.requireLive("v2")
}

func TestLoad(t *testing.T) {
	store := memory.New(nil)
	dir := t.TempDir()
	path := filepath.Join(dir, "p.yaml")
	s, err := file.New(file.Config{Path: path, Store: store, Parse: parse})
	require.NoError(t, err)
	require.ErrorIs(t, s.Load(t.Context()), os.ErrNotExist)
	write(t, path, "bad\n")
	require.ErrorIs(t, s.Load(t.Context()), quota.ErrInvalid)
	write(t, path, "a\nb\n")
	require.NoError(t, s.Load(t.Context()))
	require.False(t, s.Status().LoadedAt.IsZero())
	cur, err := store.Current(t.Context())
	require.NoError(t, err)
	require.Len(t, cur.Policies, 2)
	require.Equal(t, "file:p.yaml", cur.Author)

	write(t, path, "c\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Load(ctx), context.Canceled)
}

func TestConfigIsChecked(t *testing.T) {
	for _, cfg := range []file.Config{
		{Store: memory.New(nil), Parse: parse},
		{Path: "p", Parse: parse},
		{Path: "p", Store: memory.New(nil)},
	} {
		_, err := file.New(cfg)
		require.ErrorIs(t, err, quota.ErrInvalid)
	}
	require.Len(t, file.Outcomes(), 4)
}
