package repotest

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// file is one file of the repository; Path is relative to its root, with slashes.
type file struct {
	Path string
	Text string
}

// unversioned folders hold what builds and tools leave behind.
var unversioned = []string{".git", "bin", "dist", "node_modules"}

// root is the folder of go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above this package")
		}
		dir = parent
	}
}

// textFiles reads every text file of the repository.
func textFiles(t *testing.T) []file {
	t.Helper()
	top := root(t)
	var files []file
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains(unversioned, d.Name()) {
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.Contains(string(text), "\x00") {
			return nil
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		files = append(files, file{Path: filepath.ToSlash(rel), Text: string(text)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// read returns one file of the repository.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// report fails the test with each violation.
func report(t *testing.T, violations []string) {
	t.Helper()
	for _, v := range violations {
		t.Error(v)
	}
}

// wantViolation fails unless some violation mentions text.
func wantViolation(t *testing.T, violations []string, text string) {
	t.Helper()
	if !slices.ContainsFunc(violations, func(v string) bool { return strings.Contains(v, text) }) {
		t.Errorf("no violation says %q; got %q", text, violations)
	}
}
