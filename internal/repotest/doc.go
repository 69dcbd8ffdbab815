// Package repotest holds the rules of the whole repository as tests: what may
// import what, what no file may say, and that the documents name things that
// exist. Each rule is a function from what it reads to a list of violations, and
// each has a test that shows it finding one; a rule that cannot fail is a wish.
package repotest
