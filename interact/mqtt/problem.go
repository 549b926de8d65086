package mqtt

import (
	"cmp"
	"net/http"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/interact/problem"
)

// refused returns the error of the problem of an agent, with bounded text.
func (q *call) refused(d *delivery) error {
	e := decodeProblem(d.data, d.prop(propCode))
	e.Title = interact.Clip(q.What()+": "+e.Title, maxText)
	if e.Hint == "" && len(e.Next) == 0 {
		e.Hint = "see the agent's log"
	}
	return e
}

// decodeProblem decodes a problem. Only codes of interactions are accepted; others become AgentFailed.
func decodeProblem(data []byte, code string) *interact.Error {
	var e *interact.Error
	if len(data) <= packet.MaxControl {
		e = problem.Decode(http.StatusBadGateway, data)
	}
	if e == nil {
		e = &interact.Error{Title: "the agent answered with an error"}
	}
	e.Title = cmp.Or(e.Title, e.Code.Title())
	e.Remote, e.Code = true, problem.CodeOf(cmp.Or(code, e.Code.String()), http.StatusBadGateway)
	if e.Code == interact.Internal || e.Code >= interact.Usage {
		e.Code = interact.AgentFailed
	}
	return e
}
