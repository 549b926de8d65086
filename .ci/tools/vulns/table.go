package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// An entry is a line of table.tsv: that a range of versions of a module is affected by a vulnerability.
type entry struct {
	id, module string
	spans      []span
	packages   []string // that are affected; none: all of the module
}

// A span of versions begins with from, empty for the first, and ends before fixed, empty for none.
type span struct{ from, fixed string }

// holds reports whether a version is affected.
func (e entry) holds(version string) bool {
	return slices.ContainsFunc(e.spans, func(s span) bool {
		return (s.from == "" || semver.Compare(version, s.from) >= 0) && (s.fixed == "" || semver.Compare(version, s.fixed) < 0)
	})
}

// built reports whether one of the packages that are affected is among those compiled.
func (e entry) built(packages map[string]bool) bool {
	if len(e.packages) > 0 {
		return slices.ContainsFunc(e.packages, func(p string) bool { return packages[p] })
	}
	for p := range packages {
		if p == e.module || strings.HasPrefix(p, e.module+"/") {
			return true
		}
	}
	return false
}

func (e entry) fixes() string {
	var all []string
	for _, s := range e.spans {
		all = append(all, cmp.Or(s.fixed, "none yet"))
	}
	return strings.Join(all, ", ")
}

// parseTable reads lines "id, module, from..fixed[,from..fixed], packages", separated by tabs.
func parseTable(text string) (all []entry, err error) {
	for n, cells := range lines(text) {
		if len(cells) != 4 {
			return nil, fmt.Errorf("table.tsv: line %d has %d cells, not 4", n, len(cells))
		}
		e := entry{id: cells[0], module: cells[1], packages: strings.FieldsFunc(cells[3], func(r rune) bool { return r == ',' })}
		for s := range strings.SplitSeq(cells[2], ",") {
			from, fixed, ok := strings.Cut(s, "..")
			if !ok || from != "" && !semver.IsValid(from) || fixed != "" && !semver.IsValid(fixed) {
				return nil, fmt.Errorf("table.tsv: line %d: expected a range of versions, got %q", n, s)
			}
			e.spans = append(e.spans, span{from, fixed})
		}
		all = append(all, e)
	}
	return all, nil
}

// exceptions are vulnerabilities that are known and stay for a while, by id.
type exceptions map[string]exception

type exception struct {
	until  time.Time
	reason string
}

// parseExceptions reads lines "id, end (2006-01-02), reason", separated by tabs.
func parseExceptions(text string) (exceptions, error) {
	all := exceptions{}
	for n, cells := range lines(text) {
		if len(cells) != 3 || cells[2] == "" {
			return nil, fmt.Errorf("exceptions.tsv: line %d is not an id, an end and a reason", n)
		}
		until, err := time.Parse(time.DateOnly, cells[1])
		if err != nil {
			return nil, fmt.Errorf("exceptions.tsv: line %d: %w", n, err)
		}
		all[cells[0]] = exception{until, cells[2]}
	}
	return all, nil
}

// ended returns the exceptions whose last day is over.
func (x exceptions) ended(now time.Time) (problems []string) {
	for id, e := range x {
		if !now.Before(e.until.AddDate(0, 0, 1)) {
			problems = append(problems, fmt.Sprintf("the exception of %s ended on %s: look at it again (%s)", id,
				e.until.Format(time.DateOnly), e.reason))
		}
	}
	return problems
}

// lines yields the cells of each line that is no comment, by the number of the line.
func lines(text string) func(yield func(int, []string) bool) {
	return func(yield func(int, []string) bool) {
		n := 0
		for line := range strings.Lines(text) {
			if n++; strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
				continue
			}
			if !yield(n, strings.Split(strings.TrimRight(line, "\n"), "\t")) {
				return
			}
		}
	}
}

// An osv is what is needed of a file of the database (https://ossf.github.io/osv-schema).
type osv struct {
	ID        string
	Withdrawn string
	Affected  []struct {
		Package struct{ Name string }
		Ranges  []struct {
			Events []struct{ Introduced, Fixed string }
		}
		Specific struct {
			Imports []struct{ Path string }
		} `json:"ecosystem_specific"`
	}
}

// print writes the table for the modules of all builds.
func print(from string, builds []build) error {
	files, err := filepath.Glob(filepath.Join(from, "GO-*.json"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("%s has no files of the database (%v)", from, err)
	}
	ours := map[string]bool{}
	for _, b := range builds {
		for m := range b.modules {
			ours[m] = true
		}
	}
	head, _, _ := strings.Cut(tableText, "\nGO-")
	fmt.Println(strings.TrimSpace(head))
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		var o osv
		if err := json.Unmarshal(raw, &o); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		o.print(ours)
	}
	return nil
}

func (o *osv) print(ours map[string]bool) {
	for _, a := range o.Affected {
		if o.Withdrawn != "" || !ours[a.Package.Name] {
			continue
		}
		var spans, packages []string
		for _, r := range a.Ranges {
			open := false
			for _, e := range r.Events {
				if e.Introduced != "" {
					from := version(e.Introduced)
					spans, open = append(spans, from+".."), true
				}
				if e.Fixed != "" && open {
					spans[len(spans)-1] += version(e.Fixed)
					open = false
				}
			}
		}
		for _, i := range a.Specific.Imports {
			packages = append(packages, i.Path)
		}
		slices.Sort(packages)
		fmt.Printf("%s\t%s\t%s\t%s\n", o.ID, a.Package.Name, strings.Join(spans, ","), strings.Join(slices.Compact(packages), ","))
	}
}

// version has the letter that Go writes before it; the first of all is empty.
func version(v string) string {
	if v == "0" {
		return ""
	}
	return "v" + v
}
