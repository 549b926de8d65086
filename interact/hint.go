package interact

import "cmp"

// HintFor returns the hint for a reader that does not render steps, such as a model that uses tools: if e has steps, the text of the
// reader's own table for the code, if there is one.
func (e *Error) HintFor(instead map[Code]string) string {
	if len(e.Next) > 0 {
		return cmp.Or(instead[e.Code], e.Hint)
	}
	return e.Hint
}
