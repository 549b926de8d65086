package interact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/td"
)

// A Code is the number of an error class, written "LMOS-1404". 1xxx are interactions and the mesh, 2xxx user input, 3xxx node and
// storage, 4xxx bridges. Nodes exchange these numbers: they are never changed or reused.
type Code uint16

// The codes. Each binding and command maps them to its protocol in one table.
const (
	Invalid           Code = 1400 // input violates the schema, or the message is malformed
	Unauthenticated   Code = 1401
	Forbidden         Code = 1403 // a policy refused
	NotFound          Code = 1404 // unknown agent
	NoAffordance      Code = 1405 // unknown property, action or event
	NotAllowed        Code = 1406 // unsupported operation, for example a write to a readOnly property
	Ambiguous         Code = 1407 // a name of several Things
	NoPeer            Code = 1409
	NoTask            Code = 1410
	Withdrawn         Code = 1411 // a tombstone exists
	TooLarge          Code = 1413
	UnsupportedType   Code = 1415
	CredentialInvalid Code = 1420 // of a member of an organization
	CredentialExpired Code = 1421
	CredentialRevoked Code = 1422
	StatusUnknown     Code = 1423 // whether a member is revoked, or a token valid; retry
	IssuerUntrusted   Code = 1424
	DelegationInvalid Code = 1425 // the title has the name of the error of UCAN
	ClockSkew         Code = 1427 // a clock is wrong; the error has the signed difference
	InputNeeded       Code = 1428 // the action requires input that the consumer cannot give over this protocol
	RateLimited       Code = 1429
	GroupDissolved    Code = 1430
	NotMember         Code = 1431 // of the group, any more
	GroupSplit        Code = 1432 // the log of a group does not have an entry that it should have
	BadSignature      Code = 1460
	Expired           Code = 1461
	SenderMismatch    Code = 1462
	RolledBack        Code = 1463
	Loop              Code = 1464
	Cancelled         Code = 1499
	Internal          Code = 1500
	AgentFailed       Code = 1502 // the agent returned an error
	Unreachable       Code = 1503 // no path to the agent works now
	Timeout           Code = 1504
	Overloaded        Code = 1529
	RelayLimited      Code = 1531 // what is left of the limits of a relayed connection is too little

	Usage         Code = 2000
	ConfigUnknown Code = 2001
	ConfigInvalid Code = 2002
	ConfigFile    Code = 2003
	InlineSecret  Code = 2005
	WildcardBind  Code = 2006
	PolicyInvalid Code = 2007
	InvalidInvite Code = 2008 // an invitation is used, expired, altered, of another network or for another node; the error says which
	NotJSON       Code = 2010
	BadTD         Code = 2011

	NotRunning     Code = 3001
	NodeLost       Code = 3002
	TokenRejected  Code = 3003
	PortBusy       Code = 3010
	DataDirLocked  Code = 3011
	KeyPermissions Code = 3012
	KeystoreLocked Code = 3013 // the key file is encrypted, and there is no passphrase, or a wrong one
	StoreCorrupt   Code = 3020
	DiskFull       Code = 3021
	StoreTooNew    Code = 3022 // a newer version of lmosd wrote the store
	AuditBroken    Code = 3023 // a file of the audit log is missing, cut or changed
	ShuttingDown   Code = 3030
	NotReady       Code = 3031
)

// catalog holds the slug and the title of each code.
var catalog = map[Code]struct{ slug, title string }{
	Invalid:           {"invalid-message", "Invalid message"},
	Unauthenticated:   {"unauthenticated", "Authentication needed"},
	Forbidden:         {"forbidden-by-policy", "Forbidden by policy"},
	NotFound:          {"agent-not-found", "Agent not found"},
	NoAffordance:      {"affordance-not-found", "Affordance not found"},
	NotAllowed:        {"operation-not-allowed", "Operation not allowed"},
	Ambiguous:         {"ambiguous-name", "Ambiguous name"},
	NoPeer:            {"peer-not-found", "Peer not found"},
	NoTask:            {"task-not-found", "Task not found"},
	Withdrawn:         {"agent-withdrawn", "Agent withdrawn"},
	TooLarge:          {"too-large", "Too large"},
	UnsupportedType:   {"unsupported-content-type", "Unsupported content type"},
	CredentialInvalid: {"credential-invalid", "Credential invalid"},
	CredentialExpired: {"credential-expired", "Credential expired"},
	CredentialRevoked: {"credential-revoked", "Credential revoked"},
	StatusUnknown:     {"status-unknown", "Status unknown"},
	IssuerUntrusted:   {"issuer-untrusted", "Issuer untrusted"},
	DelegationInvalid: {"delegation-invalid", "Delegation invalid"},
	ClockSkew:         {"clock-skew", "Clock skew"},
	InputNeeded:       {"input-required", "Input required"},
	RateLimited:       {"rate-limited", "Rate limited"},
	GroupDissolved:    {"group-dissolved", "Group dissolved"},
	NotMember:         {"not-a-member", "Not a member"},
	GroupSplit:        {"log-split", "Log split"},
	BadSignature:      {"signature-invalid", "Signature invalid"},
	Expired:           {"description-expired", "Description expired"},
	SenderMismatch:    {"sender-mismatch", "Sender mismatch"},
	RolledBack:        {"description-rolled-back", "Description rolled back"},
	Loop:              {"loop", "Loop detected"},
	Cancelled:         {"cancelled", "Cancelled"},
	Internal:          {"internal", "Internal error"},
	AgentFailed:       {"agent-failed", "Agent failed"},
	Unreachable:       {"agent-unreachable", "Agent unreachable"},
	Timeout:           {"timeout", "Timeout"},
	Overloaded:        {"overloaded", "Overloaded"},
	RelayLimited:      {"relay-limited", "Relay limit"},
	Usage:             {"usage", "Usage"},
	ConfigUnknown:     {"config-unknown-field", "Unknown configuration key"},
	ConfigInvalid:     {"config-invalid-value", "Invalid configuration value"},
	ConfigFile:        {"config-unreadable", "Configuration unreadable"},
	InlineSecret:      {"config-inline-secret", "Secret in the configuration"},
	WildcardBind:      {"wildcard-bind-without-auth", "Wildcard bind without authentication"},
	PolicyInvalid:     {"policy-invalid", "Access rules invalid"},
	NotJSON:           {"td-not-json", "Not JSON"},
	BadTD:             {"td-schema", "Invalid Thing Description"},
	NotRunning:        {"node-not-running", "Node not running"},
	NodeLost:          {"node-unreachable", "Node unreachable"},
	TokenRejected:     {"token-rejected", "Token rejected"},
	PortBusy:          {"port-busy", "Port busy"},
	DataDirLocked:     {"data-dir-locked", "Data directory in use"},
	KeyPermissions:    {"key-permissions", "Key file permissions"},
	StoreCorrupt:      {"store-corrupt", "Store corrupt"},
	DiskFull:          {"disk-full", "Disk full"},
	StoreTooNew:       {"store-too-new", "Store of a newer version"},
	ShuttingDown:      {"shutting-down", "Shutting down"},
	NotReady:          {"not-ready", "Not ready"},
	InvalidInvite:     {"invitation-invalid", "Invalid invitation"},
	KeystoreLocked:    {"keystore-locked", "Key locked"},
	AuditBroken:       {"audit-broken", "Audit log damaged"},
}

// String returns the written form, "LMOS-1404".
func (c Code) String() string { return fmt.Sprintf("LMOS-%04d", uint16(c)) }

// ParseCode returns the code whose written form is text. ok is false for other texts and for unknown codes.
func ParseCode(text string) (c Code, ok bool) {
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "LMOS-"), 10, 16)
	c = Code(n)
	_, known := catalog[c]
	return c, err == nil && known && c.String() == text
}

// Slug returns the stable name of c, for example "agent-not-found"; an unknown code has the slug of [Internal].
func (c Code) Slug() string {
	if e, ok := catalog[c]; ok {
		return e.slug
	}
	return catalog[Internal].slug
}

// Title returns the short text of c.
func (c Code) Title() string {
	if e, ok := catalog[c]; ok {
		return e.title
	}
	return catalog[Internal].title
}

// Retryable reports whether the same request may succeed later without a change.
func (c Code) Retryable() bool {
	switch c {
	case RateLimited, StatusUnknown, Unreachable, Timeout, Overloaded, RelayLimited, NotRunning, NodeLost, DiskFull, ShuttingDown, NotReady:
		return true
	}
	return false
}

// Codes returns every code of the catalog, in no order.
func Codes() []Code {
	cs := make([]Code, 0, len(catalog))
	for c := range catalog {
		cs = append(cs, c)
	}
	return cs
}

// An Error is an error of an interaction. It is encoded as an LMOS error message or as an RFC 9457 problem.
type Error struct {
	Code Code
	// Title describes the failure in one line; empty means the title of the code.
	Title string
	// Hint is one line of advice without commands; those are in Next.
	Hint string
	// Next lists the possible next steps.
	Next []Step
	// Remote means that the remote side reported the error; otherwise this node inferred it.
	Remote bool
	// Started means that the remote side may have started the request, so that a repetition may run it twice.
	Started bool
	// RetryAfter is the wait before a rejected and not started request is repeated; 0 means unknown.
	RetryAfter time.Duration
	// Issues lists the errors of an input; only with [Invalid], [NotJSON] and [BadTD].
	Issues []td.Issue
	// Source has the lines of a configuration around the error, with a caret below it; empty for other errors.
	Source string
	// Err is the cause, if any.
	Err error
}

// Error returns the title and the cause on one line.
func (e *Error) Error() string {
	title := cmp.Or(e.Title, e.Code.Title())
	if e.Err != nil {
		return title + ": " + e.Err.Error()
	}
	return title
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// MayMove reports whether m may be sent to another host of the Thing, or to another Thing, after e: it was not started, or is repeatable
// ([Repeatable]). An error of the agent itself is final.
func (e *Error) MayMove(m *Message, repeatable bool) bool {
	switch e.Code {
	case NoTask:
		return m.Type.AboutRun()
	case Unreachable, RelayLimited, ShuttingDown, NotReady, Overloaded, RateLimited, NotFound, Withdrawn:
		return m.Chunks == nil && (!e.Started || repeatable)
	}
	return false
}

// Errorf returns an error of code c with a hint and a formatted title. To wrap a cause, set Err instead of %w, so that the cause is
// not repeated.
func Errorf(c Code, hint, format string, args ...any) *Error {
	return &Error{Code: c, Title: fmt.Sprintf(format, args...), Hint: hint}
}

// ShutdownError returns the error for a consumer whose own node is shutting down.
func ShutdownError(hint string) *Error {
	return Errorf(ShuttingDown, hint, "the node is shutting down")
}

// HostShutdownError returns the error for a caller of a Thing whose host is shutting down.
func HostShutdownError(hint string) *Error {
	return Errorf(ShuttingDown, hint, "the host is shutting down")
}

// NoAgent returns the error for a reference that names no agent.
func NoAgent(ref string) *Error {
	return Errorf(NotFound, "", "no agent matches %q", Excerpt(ref, 200)).Then(StepFind)
}

// TooManySubscriptions returns the error for a caller that has n subscriptions, as many as interact.subscriptions permits.
func TooManySubscriptions(caller string, n int) *Error {
	return Errorf(Overloaded, "end one; or request a higher interact.subscriptions from the operator", "%s has %d subscriptions already", caller, n)
}

// HintFor returns the hint for a reader that does not render steps, such as a model that uses tools: if e has steps, the text of the
// reader's own table for the code, if there is one.
func (e *Error) HintFor(instead map[Code]string) string {
	if len(e.Next) > 0 {
		return cmp.Or(instead[e.Code], e.Hint)
	}
	return e.Hint
}

// FirstIssue returns the first of several issues and the number of the others, on one line.
func FirstIssue(issues []td.Issue) string {
	text := issues[0].String()
	if n := len(issues) - 1; n > 0 {
		text += fmt.Sprintf(" (and %d more)", n)
	}
	return text
}

// Quote returns text as one word of a shell command: an id from an untrusted peer may be "urn:x;reboot".
func Quote(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:/@%+=", r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// AsError returns err as an [*Error]: the one that it wraps, [Cancelled] or [Timeout] for the error of a context, [NotJSON],
// [BadTD] or [TooLarge] for a [*td.ValidationError], [BadSignature], [Expired] or [TooLarge] for the errors of verification
// (td.ErrSignature and others), else [Internal]. AsError(nil) is nil.
func AsError(err error) *Error {
	var e *Error
	var v *td.ValidationError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return e
	case errors.As(err, &v):
		return fromValidation(v, err)
	case errors.Is(err, td.ErrSignature), errors.Is(err, td.ErrOwner), errors.Is(err, td.ErrHash):
		return &Error{Code: BadSignature, Title: err.Error(), Hint: "get the signed description from its owner"}
	case errors.Is(err, td.ErrExpired), errors.Is(err, td.ErrFuture):
		return &Error{Code: Expired, Title: err.Error(), Hint: "compare this machine's clock with the owner's: date -u"}
	case errors.Is(err, td.ErrTooLarge):
		return &Error{Code: TooLarge, Title: err.Error(), Hint: "shorten it: fewer capabilities, shorter ids, no pictures inside"}
	case errors.Is(err, context.Canceled):
		return &Error{Code: Cancelled, Err: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: Timeout, Hint: BusyHint, Next: MoreTime(), Err: err}
	default:
		return &Error{Code: Internal, Err: err}
	}
}

func fromValidation(v *td.ValidationError, err error) *Error {
	e := &Error{Code: BadTD, Hint: "list all issues", Next: Next(StepValidate), Issues: v.Issues, Err: err}
	switch {
	case v.NotJSON:
		e.Code = NotJSON
	case v.TooLarge:
		e.Code, e.Hint, e.Next = TooLarge, fmt.Sprintf("a TD may have %d bytes", td.MaxTD), nil
	}
	return e
}
