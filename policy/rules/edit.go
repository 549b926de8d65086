package rules

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/policy/access"
)

// Rules returns the rules in force.
func (s *Store) Rules() []access.Entry { return s.access.Load().Entries() }

// Settings returns the rights without a rule, and the path of the rules: Options.Untrusted, Connect and File.
func (s *Store) Settings() (untrusted, connect, file string) {
	return s.o.Load().Untrusted, s.o.Load().Connect, s.o.Load().File
}

// AddRule appends a rule to the file and puts it in force. It returns the rule as it is in the file. The error is an [*interact.Error] of
// code PolicyInvalid if the rules do not compile; then the file does not change.
func (s *Store) AddRule(r access.Rule) (added access.Entry, err error) {
	if err := access.NewBuilder(s.options()).AddRule("", r); err != nil {
		return added, interact.Errorf(interact.PolicyInvalid, "correct the rule", "access rule: %v", err)
	}
	err = s.edit(func(file string, texts [2][]byte) ([]byte, error) { return access.Append(file, texts[0], r) })
	if err != nil {
		return added, err
	}
	for _, e := range s.Rules() { // the last of the file
		if strings.HasPrefix(e.ID, s.base()+":") {
			added = e
		}
	}
	return added, nil
}

// RemoveRules removes rules from the file and puts the others in force. Each name is that of a rule ("policy.yaml:12" or "12"), or a caller
// whose rules are removed. The errors are those of [Store.AddRule], and Invalid for a name without a rule that can be removed.
func (s *Store) RemoveRules(names []string) (removed []access.Entry, err error) {
	err = s.edit(func(file string, texts [2][]byte) ([]byte, error) {
		set, err := compile(s.o.Load(), texts)
		if err != nil {
			return nil, err
		}
		var lines []int
		for _, name := range names {
			found, err := s.find(set.Entries(), name)
			if err != nil {
				return nil, err
			}
			for _, e := range found {
				line, _ := strconv.Atoi(strings.TrimPrefix(e.ID, file+":"))
				if !slices.Contains(lines, line) {
					removed, lines = append(removed, e), append(lines, line)
				}
			}
		}
		return access.Remove(file, texts[0], lines)
	})
	if err != nil {
		return nil, err
	}
	return removed, nil
}

// base returns the name of the file in the ids of its rules.
func (s *Store) base() string { return filepath.Base(s.o.Load().File) }

// find returns the rules of the file that name denotes.
func (s *Store) find(all []access.Entry, name string) (found []access.Entry, err error) {
	id := name
	if _, err := strconv.Atoi(name); err == nil {
		id = s.base() + ":" + name
	}
	for _, e := range all {
		ours := strings.HasPrefix(e.ID, s.base()+":")
		switch {
		case e.ID == id && !ours && strings.Contains(e.ID, ".cedar:"):
			return nil, interact.Errorf(interact.Invalid, "edit that file: it is read again within seconds", "the policy %s is in Cedar", id)
		case e.ID == id && !ours:
			return nil, interact.Errorf(interact.Invalid, "publish the agent again for other callers", "the rule %q ends with its publication", id)
		case e.ID != id && (!ours || !slices.Contains(e.Names, name)):
		case e.ID != id && len(e.Names) > 1:
			return nil, interact.Errorf(interact.Invalid, "remove the rule by its id, or edit the file", "the rule %s names other callers than %s, too", e.ID, name)
		default:
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return nil, interact.Errorf(interact.Invalid, "list the rules", "no rule in %s has the id or the caller %q", s.base(), name).
			Then(interact.StepPolicy, "ls")
	}
	return found, nil
}

// edit replaces the file of the rules in YAML by what change returns for both files, and puts it in force.
func (s *Store) edit(change func(file string, texts [2][]byte) ([]byte, error)) (err error) {
	if s.o.Load().File == "" {
		return interact.Errorf(interact.ConfigInvalid, "set trust.policy_file", "this node has no file of access rules")
	}
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	before := s.files.seen
	defer func() {
		if err != nil {
			s.files.seen = before // Run reads a file that was changed by others
		}
	}()
	texts, path, err := s.readLocked(s.o.Load())
	if err != nil {
		return unreadable(path, err)
	}
	if texts[0], err = change(s.base(), texts); err != nil {
		return asInvalid(err)
	}
	set, err := compile(s.o.Load(), texts)
	if err != nil {
		return asInvalid(err)
	}
	path = s.o.Load().File
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // a link stays
	}
	if err := atomicfile.Write(path, texts[0], 0o600); err != nil {
		return &interact.Error{Code: interact.ConfigFile, Title: "the access rules in " + path + " cannot be written", Err: err, Hint: "see the permissions of the folder"}
	}
	s.putLocked(set, texts)
	s.files.err = nil
	_, s.files.seen[0], err = readRules(s.o.Load().File)
	return err
}

// asInvalid returns err if it has a code, otherwise as the error of rules that do not compile.
func asInvalid(err error) error {
	if e := interact.AsError(err); e.Code != interact.Internal {
		return err
	}
	return invalid(err)
}
