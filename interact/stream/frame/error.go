package frame

import (
	"cmp"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Bounds of an error. Longer texts are cut.
const (
	maxTitle      = 1 << 10 // bytes
	maxHint       = 1 << 10
	maxDetail     = 2 << 10
	maxIssue      = 512 // of the pointer and of the reason
	maxIssues     = 32
	maxRetryAfter = 24 * time.Hour
)

// AppendError appends the map of e.
func AppendError(dst []byte, e *interact.Error) []byte {
	w := openMap(dst)
	w.uint(1, uint64(cmp.Or(e.Code, interact.Internal)))
	w.text(2, cut(e.Title, maxTitle))
	w.text(3, cut(e.Hint, maxHint))
	// A local cause is for the log of this node: it may contain paths and addresses of this host.
	if e.Err != nil && e.Remote {
		w.text(4, cut(e.Err.Error(), maxDetail))
	}
	var issues, steps [][]string
	for _, i := range e.Issues[:min(len(e.Issues), maxIssues)] {
		issues = append(issues, []string{cut(i.Pointer, maxIssue), cut(i.Reason, maxIssue)})
	}
	for _, s := range interact.KnownSteps(e.Next) {
		steps = append(steps, append([]string{string(s.Kind)}, s.Args...))
	}
	w.rows(5, issues)
	w.uint(6, uint64((min(max(e.RetryAfter, 0), maxRetryAfter)+time.Millisecond-1)/time.Millisecond))
	w.rows(7, steps)
	w.yes(8, e.Started)
	return w.b
}

// rows appends an array of arrays of texts.
func (w *mapWriter) rows(k byte, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	w.key(k)
	w.b = appendHead(w.b, cborArray, uint64(len(rows)))
	for _, row := range rows {
		w.b = appendHead(w.b, cborArray, uint64(len(row)))
		for _, s := range row {
			w.b = appendText(w.b, s)
		}
	}
}

// cut returns the longest valid UTF-8 prefix of s that has at most limit bytes.
func cut(s string, limit int) string {
	s = s[:min(len(s), limit)]
	for i, c := range s {
		if _, n := utf8.DecodeRuneInString(s[i:]); c == utf8.RuneError && n == 1 {
			return s[:i]
		}
	}
	return s
}

// A remoteDetail is the cause of an error of the far end.
type remoteDetail string

func (d remoteDetail) Error() string { return string(d) }

// ReadError decodes the map of an error.
func ReadError(b []byte) (*interact.Error, error) {
	e := &interact.Error{Remote: true}
	r := readMap(b)
	for k, ok := r.next(); ok; k, ok = r.next() {
		switch k {
		case 1:
			e.Code = foreign(interact.Code(r.uint(math.MaxUint16)))
		case 2:
			e.Title = r.string(r.text(maxTitle))
		case 3:
			e.Hint = r.string(r.text(maxHint))
		case 4:
			e.Err = remoteDetail(r.string(r.text(maxDetail)))
		case 5:
			for _, row := range r.rows(maxIssues, 2, 2, maxIssue) {
				e.Issues = append(e.Issues, td.Issue{Pointer: row[0], Reason: row[1]})
			}
			if e.Issues == nil {
				r.fail()
			}
		case 6:
			e.RetryAfter = time.Duration(r.uint(uint64(maxRetryAfter/time.Millisecond))) * time.Millisecond
		case 7:
			for _, row := range r.rows(interact.MaxSteps, 1, 1+interact.MaxStepArgs, interact.MaxStepArg) {
				e.Next = append(e.Next, interact.Step{Kind: interact.StepKind(row[0]), Args: append([]string(nil), row[1:]...)})
			}
			e.Next = interact.KnownSteps(e.Next)
		case 8:
			e.Started = r.yes()
		default:
			r.skip(4) // of a later version
		}
	}
	if e.Code == 0 {
		r.fail()
	}
	if r.err != nil {
		return nil, r.err
	}
	return e, nil
}

// rows reads an array of at most limit arrays, each with least to most texts of at most size bytes.
func (r *mapReader) rows(limit, least, most uint64, size int) (rows [][]string) {
	for range r.head(cborArray, limit) {
		n := r.head(cborArray, most)
		if n < least {
			r.fail()
			return nil
		}
		row := make([]string, n)
		for i := range row {
			row[i] = r.string(r.anyText(size))
		}
		rows = append(rows, row)
	}
	return rows
}

// foreign returns the code that an error of another node has on this node. It may describe an interaction or the state of that node,
// but not the configuration, key or socket of this one: then, or if the code is unknown, it becomes AgentFailed.
func foreign(c interact.Code) interact.Code {
	switch {
	case c == 0, c < 2000 && slices.Contains(interact.Codes(), c), c == interact.NotJSON, c == interact.BadTD, c == interact.DiskFull,
		c == interact.ShuttingDown, c == interact.NotReady:
		return c
	}
	return interact.AgentFailed
}
