package rpc_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/quota"
)

const (
	apply    = "/weir.v1.PolicyService/Apply"
	validate = "/weir.v1.PolicyService/Validate"
)

func TestApplyWholeAndPatch(t *testing.T) {
	b := servePolicies(t)
	first := b.put(t, ann, map[string]int{"a": 1, "b": 2})
	assert.True(t, first.Committed)
	assert.EqualValues(t, 1, first.Revision.Number)
	assert.Equal(t, "ann", first.Revision.Author)
	assert.Equal(t, "because", first.Revision.Message)
	assert.WithinDuration(t, time.Now(), first.Revision.Time, time.Minute)
	assert.Equal(t, "added a, b", first.Revision.Text)
	assert.Equal(t, []string{"a", "b"}, first.Diff.Summary().Added)

	patched, err := b.Apply(t.Context(), rpc.Change{Edit: ann, Document: doc(map[string]int{"b": 3, "c": 4}), Patch: true, Delete: []string{"a"}})
	require.NoError(t, err)
	assert.Equal(t, "added c; changed b; removed a", patched.Revision.Text)
	require.Len(t, patched.Diff.Changed, 1)
	assert.Equal(t, []policystore.FieldChange{{Path: "capacity", Old: "2", New: "3"}}, patched.Diff.Changed[0].Fields)
	assert.Contains(t, patched.Diff.String(), "capacity: 2 -> 3")
	assert.Equal(t, map[string]int{"b": 3, "c": 4}, numbers(b.current(t).Policies))

	_, err = b.Apply(t.Context(), rpc.Change{Patch: true, Delete: []string{"c"}})
	require.NoError(t, err, "a patch may only delete")
	assert.Equal(t, "anonymous", b.current(t).Author)
	b.put(t, ann, map[string]int{"z": 1})
	assert.Equal(t, map[string]int{"z": 1}, numbers(b.current(t).Policies), "a whole set removes what it leaves out")

	same := b.put(t, ann, map[string]int{"z": 1})
	assert.False(t, same.Committed)
	assert.EqualValues(t, 4, same.Revision.Number)

	deleted, err := b.Delete(t.Context(), rpc.Change{Edit: ann, Delete: []string{"z"}})
	require.NoError(t, err)
	assert.Equal(t, "removed z", deleted.Revision.Text)
	_, err = b.Delete(t.Context(), rpc.Change{Edit: ann, Delete: []string{"z"}})
	require.ErrorIs(t, err, quota.ErrNotFound)
	_, err = b.Delete(t.Context(), rpc.Change{Edit: ann})
	require.ErrorIs(t, err, quota.ErrInvalid)
}

func TestApplyRefusals(t *testing.T) {
	b := servePolicies(t)
	for name, c := range map[string]rpc.Change{
		"delete in a whole set": {Document: doc(map[string]int{"a": 1}), Delete: []string{"b"}},
		"odd id":                {Patch: true, Delete: []string{"a b"}},
		"negative expectation":  {Document: doc(map[string]int{"a": 1}), Expect: new(int64(-1))},
		"odd region":            {Document: doc(map[string]int{"a": 1}), Regions: []quota.Region{"a b"}},
		"empty document":        {},
		"control character":     {Document: doc(map[string]int{"a": 1}), Edit: rpc.Edit{Author: "a\x00b"}},
		"long message":          {Document: doc(map[string]int{"a": 1}), Edit: rpc.Edit{Message: strings.Repeat("x", policystore.MaxMessage+1)}},
	} {
		_, err := b.Apply(t.Context(), c)
		require.ErrorIs(t, err, quota.ErrInvalid, name)
	}
	assert.Zero(t, b.current(t).Number)
	_, err := b.Apply(t.Context(), rpc.Change{Document: []byte(strings.Repeat("# x\n", 5<<20))})
	require.ErrorContains(t, err, "resource_exhausted", "more than 16 MiB is not even read")
	_, err = b.Apply(t.Context(), rpc.Change{Document: []byte(strings.Repeat("# x\n", 2<<20))})
	require.ErrorIs(t, err, quota.ErrInvalid)
	require.ErrorContains(t, err, "larger than 4 MiB")
}

func TestDryRunCommitsNothing(t *testing.T) {
	b := servePolicies(t)
	b.put(t, ann, map[string]int{"a": 1})
	out, err := b.Apply(t.Context(), rpc.Change{Document: doc(map[string]int{"a": 2}), DryRun: true})
	require.NoError(t, err)
	assert.False(t, out.Committed)
	assert.EqualValues(t, 1, out.Revision.Number)
	assert.Equal(t, []string{"a"}, out.Diff.Summary().Changed)
	deleted, err := b.Delete(t.Context(), rpc.Change{Delete: []string{"a"}, DryRun: true})
	require.NoError(t, err)
	assert.Equal(t, []string{"a"}, deleted.Diff.Summary().Removed)
	rolled, err := b.Rollback(t.Context(), rpc.Rollback{DryRun: true})
	require.NoError(t, err)
	assert.Equal(t, []string{"a"}, rolled.Diff.Summary().Removed)

	assert.EqualValues(t, 1, b.current(t).Number)
	rows, err := b.ListAudit(t.Context(), rpc.Query{})
	require.NoError(t, err)
	assert.Len(t, rows.Items, 1)
	assert.Contains(t, b.get(t, "/metrics").body, `weir_policy_changes_total{action="apply",result="dry_run"} 1`)
}

func TestConflictSaysWhoChangedWhat(t *testing.T) {
	b := servePolicies(t)
	b.put(t, ann, map[string]int{"a": 1})
	b.put(t, rpc.Edit{Author: "bob", Message: "black friday"}, map[string]int{"a": 5})
	for name, change := range map[string]func() error{
		"apply": func() error {
			_, err := b.Apply(t.Context(), rpc.Change{Edit: ann, Document: doc(map[string]int{"a": 2}), Expect: new(int64(1))})
			return err
		},
		"dry run": func() error {
			_, err := b.Apply(t.Context(), rpc.Change{Edit: ann, Document: doc(map[string]int{"a": 2}), Expect: new(int64(1)), DryRun: true})
			return err
		},
		"delete": func() error {
			_, err := b.Delete(t.Context(), rpc.Change{Edit: ann, Delete: []string{"a"}, Expect: new(int64(1))})
			return err
		},
		"rollback": func() error {
			_, err := b.Rollback(t.Context(), rpc.Rollback{Edit: ann, Expect: new(int64(1))})
			return err
		},
	} {
		err := change()
		require.ErrorIs(t, err, quota.ErrConflict, name)
		assert.ErrorContains(t, err, `expected revision 1, but the current one is 2: revision 2 by bob ("black friday") changed a`, name)
		var conflict *rpc.ConflictError
		require.ErrorAs(t, err, &conflict, name)
		assert.EqualValues(t, 2, conflict.Current)
		require.Len(t, conflict.Since, 1)
		assert.Equal(t, "bob", conflict.Since[0].Author)
		assert.Equal(t, []string{"a"}, conflict.Since[0].Summary.Changed)
	}
	status, body := b.post(t, apply, `{"document":"policies: []","expectedRevision":"1"}`)
	assert.Equal(t, 409, status)
	assert.Contains(t, body, "weir.v1.Conflict")
	assert.EqualValues(t, 2, b.current(t).Number)
	assert.Contains(t, b.get(t, "/metrics").body, `weir_policy_changes_total{action="apply",result="conflict"} 3`)
	_, err := b.Apply(t.Context(), rpc.Change{Document: doc(map[string]int{"a": 2}), Expect: new(int64(9))})
	require.ErrorIs(t, err, quota.ErrConflict, "a revision that is not there yet")
}

// A conflict with thousands of ids and long messages still fits into trailers.
func TestConflictIsBounded(t *testing.T) {
	b := servePolicies(t)
	for i := range 12 {
		set := make(map[string]int)
		for n := range 500 {
			set[fmt.Sprintf("policy-%d-%d", i, n)] = 1
		}
		b.put(t, rpc.Edit{Author: "ann", Message: strings.Repeat("é", policystore.MaxMessage/2)}, set)
	}
	var response weirv1.ApplyResponse
	err := b.grpcConn(t).Invoke(t.Context(), apply, &weirv1.ApplyRequest{Document: "policies: []", ExpectedRevision: new(int64(0))}, &response)
	require.Error(t, err)
	assert.Less(t, len(err.Error()), 8<<10)
	_, err = b.Apply(t.Context(), rpc.Change{Document: []byte("policies: []"), Expect: new(int64(0))})
	var conflict *rpc.ConflictError
	require.ErrorAs(t, err, &conflict)
	assert.Len(t, conflict.Since, policystore.MaxConflictRevisions)
	assert.Len(t, conflict.Since[0].Summary.Added, 20)
	assert.Equal(t, "added 500 policies; removed 500 policies", conflict.Since[0].Text)
}

func TestTwoEditorsAtOnce(t *testing.T) {
	b := servePolicies(t)
	b.put(t, ann, map[string]int{"a": 1})
	const editors = 8
	errs := make([]error, editors)
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range editors {
		wg.Go(func() {
			<-begin
			_, errs[i] = b.Apply(t.Context(), rpc.Change{
				Edit: rpc.Edit{Author: fmt.Sprint("editor-", i)}, Document: doc(map[string]int{"a": 10 + i}), Expect: new(int64(1)),
			})
		})
	}
	close(begin)
	wg.Wait()
	winner := b.current(t)
	won := 0
	for i, err := range errs {
		if err == nil {
			won++
			assert.Equal(t, fmt.Sprint("editor-", i), winner.Author)
			continue
		}
		require.ErrorIs(t, err, quota.ErrConflict)
		assert.ErrorContains(t, err, "revision 2 by "+winner.Author+" changed a")
	}
	assert.Equal(t, 1, won)
}

func TestParallelAppliesLoseNothing(t *testing.T) {
	b := servePolicies(t)
	// A second coordinator over the same store, as in a rolling upgrade.
	other := servePolicies(t, func(c *rpc.ServerConfig) { c.Policies.Store = b.store })
	const n = 50
	want := make(map[string]int)
	var wg sync.WaitGroup
	for i := range n {
		id := fmt.Sprint("p", i)
		want[id] = i + 1
		client := b.PolicyClient
		if i%2 == 1 {
			client = other.PolicyClient
		}
		wg.Go(func() {
			_, err := client.Apply(t.Context(), rpc.Change{Document: doc(map[string]int{id: i + 1}), Patch: true})
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	assert.Equal(t, want, numbers(b.current(t).Policies))
	assert.EqualValues(t, n, b.current(t).Number)
}

func TestRolloutPromoteAndRollback(t *testing.T) {
	b := servePolicies(t)
	inForce := func(region quota.Region) int64 {
		t.Helper()
		r, err := b.InForce(t.Context(), region)
		require.NoError(t, err)
		return r.Revision.Number
	}
	b.put(t, ann, map[string]int{"a": 1})
	out, err := b.Apply(t.Context(), rpc.Change{Edit: ann, Document: doc(map[string]int{"a": 2}), Patch: true, Regions: []quota.Region{"us-east"}})
	require.NoError(t, err)
	assert.Equal(t, []quota.Region{"us-east"}, out.Revision.Regions)
	assert.EqualValues(t, 2, inForce("us-east"))
	assert.EqualValues(t, 1, inForce("eu-west"))

	_, err = b.Apply(t.Context(), rpc.Change{Edit: ann, Document: doc(map[string]int{"b": 2}), Patch: true})
	require.ErrorIs(t, err, quota.ErrConflict)
	assert.ErrorContains(t, err, "live in us-east only")

	promoted, err := b.Rollback(t.Context(), rpc.Rollback{Edit: ann, To: 2})
	require.NoError(t, err)
	assert.True(t, promoted.Committed)
	assert.Empty(t, promoted.Revision.Regions)
	assert.EqualValues(t, 3, inForce("eu-west"))

	back, err := b.Rollback(t.Context(), rpc.Rollback{Edit: rpc.Edit{Author: "bob", Message: "too strict"}, To: 1, Expect: new(int64(3))})
	require.NoError(t, err)
	assert.EqualValues(t, 4, back.Revision.Number)
	assert.EqualValues(t, 1, back.Revision.RestoredFrom)
	assert.Equal(t, map[string]int{"a": 1}, numbers(b.current(t).Policies))
	_, err = b.Rollback(t.Context(), rpc.Rollback{To: 99})
	require.ErrorIs(t, err, quota.ErrNotFound)
	_, err = b.Rollback(t.Context(), rpc.Rollback{To: -1})
	require.ErrorIs(t, err, quota.ErrNotFound)
}

func TestValidateListsEveryProblem(t *testing.T) {
	b := servePolicies(t)
	bad := []byte("policies:\n  - id: a\n    algorithmm: token-bucket\n    capacity: -1\n    onStoreFailure: local\n  - id: a\n")
	_, want := document.Policies(bad)
	var wanted *quota.DocumentError
	require.ErrorAs(t, want, &wanted)
	require.Greater(t, len(wanted.Problems), 3)

	v, err := b.Validate(t.Context(), bad)
	require.NoError(t, err)
	require.NotNil(t, v.Err)
	assert.Equal(t, wanted.Problems, v.Err.Problems)
	assert.Equal(t, "algorithm", v.Err.Problems[0].Nearest)
	raw, err := v.JSON()
	require.NoError(t, err)
	assert.Contains(t, string(raw), `"line":3`)

	_, err = b.Apply(t.Context(), rpc.Change{Document: bad})
	var applied *quota.DocumentError
	require.ErrorAs(t, err, &applied)
	assert.Equal(t, wanted.Problems, applied.Problems, "Apply says the same")
	status, body := b.post(t, apply, string(must(json.Marshal(map[string]string{"document": string(bad)}))))
	assert.Equal(t, 400, status)
	assert.Contains(t, body, "weir.v1.Problems")

	good, err := b.Validate(t.Context(), doc(map[string]int{"a": 1, "b": 1}))
	require.NoError(t, err)
	assert.Nil(t, good.Err)
	assert.Equal(t, 2, good.Policies)
	_, body = b.post(t, validate, `{"document":"policies: []"}`)
	assert.Equal(t, `{"valid":true}`, body)
	assert.Zero(t, b.current(t).Number)
}

// An error about a document that is wrong all over stays small; Validate has all.
func TestDocumentErrorsAreBounded(t *testing.T) {
	b := servePolicies(t)
	bad := []byte("policies:\n" + strings.Repeat("  - {}\n", 2000))
	_, err := b.Apply(t.Context(), rpc.Change{Document: bad})
	var wrong *quota.DocumentError
	require.ErrorAs(t, err, &wrong)
	assert.Len(t, wrong.Problems, 50)
	var response weirv1.ApplyResponse
	err = b.grpcConn(t).Invoke(t.Context(), apply, &weirv1.ApplyRequest{Document: string(bad)}, &response)
	require.ErrorContains(t, err, "which Validate lists")
	assert.Less(t, len(err.Error()), 4<<10)
	v, err := b.Validate(t.Context(), bad)
	require.NoError(t, err)
	assert.Len(t, v.Err.Problems, quota.MaxProblems)
	assert.Equal(t, len(wrong.Problems)+wrong.Omitted, len(v.Err.Problems)+v.Err.Omitted)
}

func TestEveryFieldOfAPolicyTravels(t *testing.T) {
	full := []byte(`policies:
  - id: full
    match: { plan: free, route: "/a/*" }
    key: [tenant, apiKey]
    algorithm: token-bucket
    capacity: 20
    refill: 7/13s
    onStoreFailure: closed
    storeDeadline: 7ms
    missingKey: deny
    split: { strategy: explicit, floor: 0, weights: { us-east: 2, eu-west: 0.5 } }
    priority: 3
    shadow: true
  - { id: log, key: [ip], algorithm: sliding-log, limit: 10, window: 60s, onStoreFailure: open, scope: regional, missingKey: shared }
  - { id: free, algorithm: token-bucket, unlimited: true, onStoreFailure: local }
`)
	b := servePolicies(t)
	_, err := b.Apply(t.Context(), rpc.Change{Edit: ann, Document: full})
	require.NoError(t, err)
	page, err := b.List(t.Context(), rpc.Query{})
	require.NoError(t, err)
	assert.Equal(t, b.current(t).Policies, page.Items)
	raw, err := page.JSON()
	require.NoError(t, err)
	var m weirv1.ListResponse
	require.NoError(t, protojson.Unmarshal(raw, &m))
	assert.Equal(t, "token-bucket", m.GetPolicies()[1].GetAlgorithm())

	floor := 5.0
	seam := &quota.Policy{
		ID: "seam", Algorithm: quota.Concurrency, Limit: quota.Limit{Capacity: 5 * quota.Token}, LeaseTTL: time.Minute,
		OnStoreFailure: quota.FailOpen, Enforcement: quota.Leased, SubBuckets: 4,
		Split: quota.Split{Strategy: quota.SplitEqual, OnPartition: quota.Strict, FloorPercent: &floor},
	}
	got, err := rpc.PolicyOverTheWire(seam)
	require.NoError(t, err)
	assert.Equal(t, seam, got)
}

// A policy of a later version is refused as a whole, not enforced in part.
func TestUnknownPartsOfAPolicyAreRefused(t *testing.T) {
	for name, change := range map[string]func(*weirv1.Policy){
		"algorithm":   func(m *weirv1.Policy) { m.Algorithm = "leaky-bucket" },
		"scope":       func(m *weirv1.Policy) { m.Scope = "planet" },
		"enforcement": func(m *weirv1.Policy) { m.Enforcement = "maybe" },
		"field":       func(m *weirv1.Policy) { m.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 0x01}) },
		"split field": func(m *weirv1.Policy) {
			m.Split = &weirv1.Split{}
			m.Split.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 0x01})
		},
	} {
		m := &weirv1.Policy{Id: "p", Algorithm: "token-bucket"}
		change(m)
		_, err := rpc.ToPolicy(m)
		assert.ErrorContains(t, err, "newer than this program", name)
	}
	_, err := rpc.ToPolicy(&weirv1.Policy{Id: "p"})
	assert.NoError(t, err)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
