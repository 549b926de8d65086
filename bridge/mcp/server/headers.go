package server

import (
	"net/http"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// check compares the headers of a request with the members of the body that they repeat for proxies (MCP 2026-07-28, "Standard headers").
// It checks the body first.
func (h *Handler) check(r *http.Request, m *protocol.Message) *protocol.Error {
	if e := m.CheckMeta(); e != nil {
		return e
	}
	if e := compare(r, versionName, m.Version()); e != nil {
		return e
	}
	if e := m.CheckVersion(); e != nil {
		return e
	}
	if e := compare(r, "Mcp-Method", m.Method()); e != nil {
		return e
	}
	if name, named := m.TargetName(); named {
		if e := compare(r, "Mcp-Name", name); e != nil {
			return e
		}
	}
	if m.Method() != protocol.CallTool || h.o.Params == nil {
		return nil
	}
	return checkArguments(r, m, h.o.Params(r.Context(), m.Text("name")))
}

// compare checks that the header name has the value want, which is in the body.
func compare(r *http.Request, name, want string) *protocol.Error {
	got, ok, e := header(r, name)
	switch {
	case e != nil:
		return e
	case !ok:
		return protocol.Errorf(protocol.HeaderMismatch, "missing header %s: expected %q, as in the body", name, want)
	case got != want:
		return protocol.Errorf(protocol.HeaderMismatch, "header %s: expected %q, as in the body, got %q", name, want, got)
	}
	return nil
}

// header returns the decoded value of a header, and whether it exists.
func header(r *http.Request, name string) (value string, ok bool, e *protocol.Error) {
	switch all := r.Header.Values(name); len(all) {
	case 0:
		return "", false, nil
	case 1:
		value, e = protocol.DecodeHeader(all[0])
		return value, true, e
	default:
		return "", true, protocol.Errorf(protocol.HeaderMismatch, "duplicate header %s", name)
	}
}

// checkArguments compares the headers Mcp-Param-… with the arguments that they repeat.
func checkArguments(r *http.Request, m *protocol.Message, params []protocol.Param) *protocol.Error {
	for _, p := range params {
		raw, err := m.Param(append([]string{"arguments"}, p.Path...)...)
		if err != nil {
			return err.(*protocol.Error)
		}
		name := "Mcp-Param-" + p.Header
		got, ok, e := header(r, name)
		switch {
		case e != nil:
			return e
		case raw == nil || string(raw) == "null":
			if ok {
				return protocol.Errorf(protocol.HeaderMismatch, "unexpected header %s: the argument is missing", name)
			}
		case !ok:
			return protocol.Errorf(protocol.HeaderMismatch, "missing header %s, which repeats an argument", name)
		case !protocol.HeaderMatches(got, raw):
			return protocol.Errorf(protocol.HeaderMismatch, "header %s: got %q, but the argument is %s", name, got, raw)
		}
	}
	return nil
}
