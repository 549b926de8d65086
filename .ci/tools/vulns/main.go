// Command vulns is the gate against known vulnerabilities. It reads what modules each directory builds with, and fails where one is
// in a range that table.tsv says is affected, and a package of it that is affected is built; unless exceptions.tsv gives a reason that
// has not ended. It needs no network. Then it runs govulncheck over the same directories, where its database can be reached.
//
//	vulns [-govulncheck PROGRAM] [-db URL] DIRECTORY...     the gate
//	vulns -from OSV DIRECTORY...                            print a new table.tsv, from the files of the database (data/osv of golang/vulndb)
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

//go:embed table.tsv
var tableText string

//go:embed exceptions.tsv
var exceptionText string

func main() {
	from := flag.String("from", "", "print the table from this directory of OSV files")
	program := flag.String("govulncheck", "", "run this govulncheck, too")
	db := flag.String("db", "https://vuln.go.dev", "the database of govulncheck")
	flag.Parse()
	problems, err := run(*from, *program, *db, flag.Args())
	for _, p := range problems {
		fmt.Println("FAIL", p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulns:", err)
	}
	if err != nil || len(problems) > 0 {
		os.Exit(1)
	}
}

// run returns what must not stay as it is.
func run(from, program, db string, dirs []string) (problems []string, err error) {
	builds := make([]build, len(dirs))
	for i, dir := range dirs {
		if builds[i], err = listed(dir); err != nil {
			return nil, err
		}
	}
	if from != "" {
		return nil, print(from, builds)
	}
	all, err := parseTable(tableText)
	if err != nil {
		return nil, err
	}
	except, err := parseExceptions(exceptionText)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	problems = except.ended(now)
	for _, b := range builds {
		problems = append(problems, b.affected(all, except)...)
	}
	fmt.Printf("%d known vulnerabilities of modules in %s looked at, %d exceptions\n", len(all), strings.Join(dirs, " "), len(except))
	if program == "" {
		return problems, nil
	}
	if reason := unreachable(db); reason != "" {
		fmt.Printf("govulncheck SKIPPED: its database %s cannot be reached: %s; the table above holds what was known when it was written\n", db, reason)
		return problems, nil
	}
	for _, dir := range dirs {
		found, err := scan(program, db, dir, except)
		if err != nil {
			return problems, err
		}
		problems = append(problems, found...)
	}
	return problems, nil
}

// A build is what one directory is built from, tests with it.
type build struct {
	dir      string
	modules  map[string]string // version by path, of the whole graph
	packages map[string]bool   // that are compiled
}

// listed asks the go command.
func listed(dir string) (build, error) {
	b := build{dir: dir, modules: map[string]string{}, packages: map[string]bool{}}
	modules, err := goList(dir, "-m", "-f", "{{with .Replace}}{{.Path}} {{.Version}}{{else}}{{.Path}} {{.Version}}{{end}}", "all")
	if err != nil {
		return b, err
	}
	for _, line := range modules {
		if path, version, ok := strings.Cut(line, " "); ok && version != "" { // the main module and directories have none
			b.modules[path] = version
		}
	}
	args := []string{"-deps", "-test", "-f", "{{.ImportPath}}", "./..."}
	if tools, err := goList(dir, "tool"); err == nil && len(tools) > 0 {
		args = append(args, "tool")
	}
	packages, err := goList(dir, args...)
	for _, p := range packages {
		path, _, _ := strings.Cut(p, " ") // of a test: "x [x.test]"
		b.packages[path] = true
	}
	return b, err
}

func goList(dir string, args ...string) ([]string, error) {
	c := exec.Command("go", append([]string{"list"}, args...)...)
	c.Dir = dir
	out, err := c.Output()
	if err != nil {
		if e, ok := err.(*exec.ExitError); ok {
			err = fmt.Errorf("go list in %s: %s", dir, e.Stderr)
		}
		return nil, err
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' }), nil
}

// affected returns the entries of all that b is affected by, but for exceptions.
func (b build) affected(all []entry, except exceptions) (problems []string) {
	for _, e := range all {
		version := b.modules[e.module]
		if version == "" || !e.holds(version) || !e.built(b.packages) {
			continue
		}
		if why, ok := except[e.id]; ok {
			fmt.Printf("%s: %s is excepted until %s: %s\n", b.dir, e.id, why.until.Format(time.DateOnly), why.reason)
			continue
		}
		problems = append(problems, fmt.Sprintf("%s: %s: %s %s is affected; fixed in: %s", b.dir, e.id, e.module, version, e.fixes()))
	}
	return problems
}
