package coap

import (
	"encoding/json"
	"math/bits"
	"strings"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/td"
)

// terms are the terms of a form in the vocabulary of CoAP (WoT Binding Templates, CoAP, "Vocabulary"); absent ones are zero or nil.
type terms struct {
	method      codes.Code
	format      *uint32 // cov:contentFormat of the request
	accept      *uint32 // cov:accept: the option is required
	answered    *uint32 // cov:contentFormat of the form's response
	unconfirmed bool    // cov:confirmable: false
	hops        *uint32 // cov:hopLimit, 1 to 255 (RFC 8768)
	poll        time.Duration
	szx1, szx2  *uint8 // of the blocks of the request, and of the response
}

// methods are the values of cov:method.
var methods = map[string]codes.Code{"GET": codes.GET, "PUT": codes.PUT, "POST": codes.POST, "DELETE": codes.DELETE,
	"FETCH": messaging.Fetch, "PATCH": messaging.Patch, "IPATCH": messaging.IPatch}

// minPoll is the default polling interval of a resource that cannot be observed.
const minPoll = time.Second

// maxPoll limits the polling interval of a form.
const maxPoll = 24 * time.Hour

// termsOf reads the terms of a form for the operation op. An invalid term is ignored; the agent rejects the request.
func termsOf(f *td.Form, op string) terms {
	var raw struct {
		Method      any `json:"cov:method"`
		MethodName  any `json:"cov:methodName"` // of early drafts
		Format      any `json:"cov:contentFormat"`
		Accept      any `json:"cov:accept"`
		Confirmable any `json:"cov:confirmable"`
		HopLimit    any `json:"cov:hopLimit"`
		Poll        any `json:"cov:minPollingInterval"`
		Blockwise   any `json:"cov:blockwise"`
		Q           any `json:"cov:qblockwise"`
		Quick       any `json:"cov:quickblockwise"`
		Response    any `json:"response"`
	}
	t := terms{method: defaultMethod(op), poll: minPoll}
	if len(f.Raw) == 0 || json.Unmarshal(f.Raw, &raw) != nil {
		return t
	}
	for _, name := range []any{raw.MethodName, raw.Method} {
		if text, _ := name.(string); methods[strings.ToUpper(text)] != 0 {
			t.method = methods[strings.ToUpper(text)]
		}
	}
	response, _ := raw.Response.(map[string]any)
	t.format, t.accept = number(raw.Format, 0xffff), number(raw.Accept, 0xffff)
	t.answered = number(response["cov:contentFormat"], 0xffff)
	t.unconfirmed = raw.Confirmable == false
	if t.hops = number(raw.HopLimit, 255); t.hops != nil && *t.hops == 0 {
		t.hops = nil
	}
	if seconds, ok := raw.Poll.(float64); ok && seconds > 0 {
		t.poll = time.Duration(min(seconds, maxPoll.Seconds()) * float64(time.Second))
	}
	// Servers of Q-Block also have Block (RFC 9177 §4.1), which is used here: only the sizes are read.
	for _, blocks := range []any{raw.Quick, raw.Q, raw.Blockwise} {
		sizes, _ := blocks.(map[string]any)
		if szx := szxOf(sizes["cov:block1Size"]); szx != nil {
			t.szx1 = szx
		}
		if szx := szxOf(sizes["cov:block2Size"]); szx != nil {
			t.szx2 = szx
		}
	}
	return t
}

// defaultMethod is the method of an operation (WoT Binding Templates, CoAP, "Default Mappings").
func defaultMethod(op string) codes.Code {
	switch {
	case strings.HasPrefix(op, "write"):
		return codes.PUT
	case op == "invokeaction", op == "cancelaction":
		return codes.POST
	}
	return codes.GET
}

// number returns a JSON number that is an integer from 0 to max.
func number(v any, max uint32) *uint32 {
	f, ok := v.(float64)
	if !ok || f < 0 || f > float64(max) || f != float64(uint32(f)) {
		return nil
	}
	n := uint32(f)
	return &n
}

// szxOf returns the exponent of a size of 16, 32, … 1024 bytes.
func szxOf(v any) *uint8 {
	n := number(v, 1024)
	if n == nil || *n < 16 || bits.OnesCount32(*n) != 1 {
		return nil
	}
	szx := uint8(bits.TrailingZeros32(*n) - 4)
	return &szx
}

// options adds the options of the terms to a request.
func (t terms) options(p *messaging.Packet) {
	if t.accept != nil {
		p.AddUint(message.Accept, *t.accept)
	}
	if t.hops != nil {
		p.AddUint(messaging.HopLimit, *t.hops)
	}
	if t.unconfirmed {
		p.Kind = message.NonConfirmable
	}
}
