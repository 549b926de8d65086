package interact

import "regexp"

// commands finds what a person types at a shell: a command of lmosd, or a flag of one.
var commands = regexp.MustCompile("\\blmosd(?: +[-a-z]|$)|(?:^|[ ,:`])--[a-z]")

// HintFor returns the hint for a reader that has no shell, such as a model that uses tools: a hint that is or names a command gives way
// to what the reader's own table says for the code, which may be nothing.
func (e *Error) HintFor(instead map[Code]string) string {
	if commands.MatchString(e.Hint) {
		return instead[e.Code]
	}
	return e.Hint
}
