package features

import (
	"strings"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// metaError is the member of _meta that says what an error of a tool is in lmosd's catalogue.
const metaError = "dev.lmosd/error"

// Failed is the result of a tool that failed, in words that a model can act on.
func Failed(err error) Result {
	e := interact.AsError(err)
	return Result{Type: "complete", IsError: true, Content: []block{textBlock(inWords(e))}, Meta: map[string]any{metaError: protocol.ErrorData(e)}}
}

// inWords says what happened, which parts of an input are wrong, and what to do. The cause stays here.
func inWords(e *interact.Error) string {
	text := titleOf(e)
	for _, i := range e.Issues {
		text += "\n" + strings.TrimPrefix(i.Pointer+" ", " ") + i.Reason
	}
	if hint := protocol.Hint(e); hint != "" {
		text += "\n" + hint
	}
	return interact.Clip(text, MaxWords)
}

// MaxWords bounds what is said of an error, or of progress, in bytes.
const MaxWords = 8 << 10

func titleOf(e *interact.Error) string {
	if e.Title != "" {
		return e.Title
	}
	return e.Code.Title()
}

// Fault is the error of a request that is no tool's failure.
func Fault(err error) *protocol.Error {
	e := interact.AsError(err)
	code := protocol.InternalError
	switch e.Code {
	case interact.Invalid, interact.NoAffordance, interact.NoTask, interact.NotAllowed:
		code = protocol.InvalidParams
	}
	return protocol.Errorf(code, "%s", interact.Clip(titleOf(e), MaxWords)).With(protocol.ErrorData(e))
}

// FaultAt is the error of reading what is at uri.
func FaultAt(err error, uri string) *protocol.Error {
	data := protocol.ErrorData(interact.AsError(err))
	data["uri"] = uri
	return Fault(err).With(data)
}
