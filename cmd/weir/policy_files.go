package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirhq/weir/internal/app"
	"github.com/weirhq/weir/quota"
)

// readDocuments reads policy documents: files, the documents of a folder, or
// stdin for "-".
func readDocuments(stdin io.Reader, paths []string) ([]app.PolicyDocument, error) {
	var docs []app.PolicyDocument
	for i, path := range paths {
		if path == "-" {
			if slices.Contains(paths[:i], "-") {
				return nil, usagef("stdin can be read only once, but - is given twice")
			}
			text, err := readDocument(stdin)
			if err != nil {
				return nil, fmt.Errorf("stdin: %w", err)
			}
			docs = append(docs, app.PolicyDocument{Name: "stdin", Text: text})
			continue
		}
		files, err := filesAt(path)
		if err != nil {
			return nil, err
		}
		for _, name := range files {
			text, err := readDocumentFile(name)
			if err != nil {
				return nil, err
			}
			docs = append(docs, app.PolicyDocument{Name: name, Text: text})
		}
	}
	return docs, nil
}

// filesAt is a file itself, or the documents that lie in a folder, by name.
// Folders in it and hidden files are left alone.
func filesAt(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		ext := strings.ToLower(filepath.Ext(e.Name()))
		if strings.HasPrefix(e.Name(), ".") || ext != ".yaml" && ext != ".yml" && ext != ".json" {
			continue
		}
		name := filepath.Join(path, e.Name())
		info, err := os.Stat(name) // what a link leads to
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, name)
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s holds no .yaml, .yml or .json file", path)
	}
	return files, nil
}

func readDocumentFile(name string) ([]byte, error) {
	f, err := os.Open(name) //nolint:gosec // the user of the command says which file
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	text, err := readDocument(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return text, nil
}

// readDocument reads one byte more than a document may have, so that whoever
// parses it says that it is too large.
func readDocument(r io.Reader) ([]byte, error) {
	return io.ReadAll(io.LimitReader(r, app.MaxPolicyDocument+1))
}

// lint finds everything that is wrong with documents that are one set together.
// parse is asked about each.
func lint(docs []app.PolicyDocument, parse func(text []byte) ([]*quota.Policy, error)) ([]*quota.Policy, *problemsError, error) {
	var policies []*quota.Policy
	found := &problemsError{}
	repeated := app.RepeatedPolicies(docs)
	for i, doc := range docs {
		some, err := parse(doc.Text)
		problems := repeated[i]
		if bad, ok := errors.AsType[*quota.DocumentError](err); ok {
			problems = append(problems, bad.Problems...)
			found.omitted += bad.Omitted
		} else if err != nil {
			return nil, nil, err
		}
		for _, p := range quota.NewDocumentError(problems...).Problems {
			found.problems = append(found.problems, fileProblem{doc.Name, p})
		}
		policies = append(policies, some...)
	}
	if len(found.problems) > 0 {
		return nil, found, nil
	}
	return policies, nil, nil
}

// merge makes one document of several. A single one stays as it is, so that the
// server's words about its lines are about the lines of the file.
func merge(docs []app.PolicyDocument) ([]byte, error) {
	if len(docs) == 1 {
		return docs[0].Text, nil
	}
	policies, wrong, err := lint(docs, app.ParsePolicies)
	if err != nil {
		return nil, err
	}
	if wrong != nil {
		return nil, wrong
	}
	return app.MarshalPolicies(policies), nil
}

// refused turns what a server says about a document into what is wrong with the
// file that it came from. An error about one document lists the first problems
// only, so that the server is asked for all of them.
func refused(c session, docs []app.PolicyDocument, err error) error {
	doc, ok := errors.AsType[*quota.DocumentError](err)
	if !ok {
		return err
	}
	name := "the merged documents"
	if len(docs) == 1 {
		name = docs[0].Name
		if doc.Omitted > 0 {
			if all, err := c.Validate(c.cmd.Context(), docs[0].Text); err == nil && all.Err != nil {
				doc = all.Err
			}
		}
	}
	out := &problemsError{omitted: doc.Omitted}
	for _, p := range doc.Problems {
		out.problems = append(out.problems, fileProblem{name, p})
	}
	return out
}
