package features

import (
	"cmp"
	"strings"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// metaError is the member of _meta with the error code and hint of lmosd.
const metaError = "dev.lmosd/error"

// Failed returns the result of a failed tool, with a text for the model.
func Failed(err error) Result {
	e := interact.AsError(err)
	return Result{Type: "complete", IsError: true, Content: []block{textBlock(errorText(e))},
		Meta: map[string]any{metaError: protocol.ErrorData(e)}}
}

// errorText returns the title, the issues and the hint of an error. It omits the cause, which may contain internal addresses.
func errorText(e *interact.Error) string {
	text := cmp.Or(e.Title, e.Code.Title())
	for _, i := range e.Issues {
		text += "\n" + strings.TrimPrefix(i.Pointer+" ", " ") + i.Reason
	}
	if hint := protocol.Hint(e); hint != "" {
		text += "\n" + hint
	}
	return interact.Clip(text, MaxText)
}

// MaxText bounds the text of an error or of a progress message, in bytes.
const MaxText = 8 << 10

// Error converts an error of a request to a protocol error. Failures of a tool are results instead, see [Failed].
func Error(err error) *protocol.Error {
	e := interact.AsError(err)
	code := protocol.InternalError
	switch e.Code {
	case interact.Invalid, interact.NoAffordance, interact.NoTask, interact.NotAllowed:
		code = protocol.InvalidParams
	}
	return protocol.Errorf(code, "%s", interact.Clip(cmp.Or(e.Title, e.Code.Title()), MaxText)).With(protocol.ErrorData(e))
}

// ReadError is [Error] for resources/read.
func ReadError(err error, uri string) *protocol.Error {
	data := protocol.ErrorData(interact.AsError(err))
	data["uri"] = uri
	return Error(err).With(data)
}
