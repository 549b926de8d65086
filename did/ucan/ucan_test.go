package ucan

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/cbor"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const track Command = "/lmos/invoke/logistics/track"

// Keys of the tests: the host, who it delegates to, who that one delegates to, and one more.
const (
	host = iota + 1
	alice
	bob
	carol
)

func id(n int) did.DID { return didtest.Key(n).DID() }

// delegation returns one of track by n, within the bounds of lmosd.
func delegation(t testing.TB, n, to int, change func(*Delegation)) *Token {
	t.Helper()
	d := Delegation{Audience: id(to), Subject: id(host), Command: track, Expires: noon.Add(time.Hour)}
	if change != nil {
		change(&d)
	}
	return signed(t, d, n)
}

// invocation returns one of track by n, within the bounds of lmosd.
func invocation(t testing.TB, n int, proofs []*Token, change func(*Invocation)) *Token {
	t.Helper()
	i := Invocation{Subject: id(host), Command: track, Args: map[string]any{"amount": 50}, Expires: noon.Add(time.Minute)}
	for _, p := range proofs {
		i.Proofs = append(i.Proofs, p.CID())
	}
	if change != nil {
		change(&i)
	}
	return signed(t, i, n)
}

func signed(t testing.TB, content interface {
	Sign(did.Signer) (*Token, error)
}, n int) *Token {
	t.Helper()
	token, err := content.Sign(didtest.Key(n))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func where(t testing.TB, statements ...any) Policy {
	t.Helper()
	p, err := NewPolicy(statements)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func bytesOf(tokens ...*Token) [][]byte {
	var list [][]byte
	for _, t := range tokens {
		list = append(list, t.Bytes())
	}
	return list
}

// call returns the tokens of an invocation with its proofs.
func call(t testing.TB, n int, proofs ...*Token) [][]byte {
	t.Helper()
	return bytesOf(append(slices.Clone(proofs), invocation(t, n, proofs, nil))...)
}

func verifier() *Verifier { return NewVerifier(Options{Host: id(host), Skew: time.Minute}) }

func checkReason(t *testing.T, err error, want Reason) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	e, ok := errors.AsType[*Error](err)
	if !ok || !errors.Is(err, want) || e.Reason != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	first := delegation(t, host, alice, func(d *Delegation) { d.Policy = where(t, []any{"<=", ".amount", 100}) })
	second := delegation(t, alice, bob, func(d *Delegation) { d.Expires = noon.Add(30 * time.Second) })
	invoke := invocation(t, bob, []*Token{first, second}, nil)
	v := verifier()
	for _, order := range [][]*Token{{first, second, invoke}, {invoke, second, first}, {second, invoke, first}} {
		c, err := v.Verify(bytesOf(order...), noon)
		if err != nil {
			t.Fatal(err)
		}
		if c.Subject != id(host) || c.Invoker != id(bob) || c.Command != track || c.Invocation != invoke.CID() || !c.Expires.Equal(noon.Add(30*time.Second)) {
			t.Errorf("got %+v", c)
		}
		if c.Args["amount"] != int64(50) {
			t.Errorf("arguments %v", c.Args)
		}
		if len(c.Links) != 2 || c.Links[0].CID != first.CID() || c.Links[0].Issuer != id(host) || c.Links[0].Audience != id(alice) || c.Links[1].CID != second.CID() ||
			c.Links[1].Audience != id(bob) || len(c.Links[0].Policy.Source()) != 1 || len(c.Links[1].Policy.Source()) != 0 {
			t.Errorf("links %+v", c.Links)
		}
	}
	if c, err := v.Verify(bytesOf(invocation(t, host, nil, nil)), noon); err != nil || len(c.Links) != 0 {
		t.Errorf("the host itself: %+v, %v", c, err)
	}
}

func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	root := delegation(t, host, alice, nil)
	onward := delegation(t, alice, bob, nil)
	limited := delegation(t, host, alice, func(d *Delegation) { d.Policy = where(t, []any{"<=", ".amount", 10}) })
	powerline := func(d *Delegation) { d.Subject = "" }
	many := []*Token{}
	for n := range MaxLinks + 1 {
		many = append(many, delegation(t, host+n, host+n+1, nil))
	}
	for name, c := range map[string]struct {
		tokens [][]byte
		want   Reason
	}{
		"a chain of two":               {call(t, bob, root, onward), ""},
		"a powerline below the root":   {call(t, bob, root, delegation(t, alice, bob, powerline)), ""},
		"a narrower command":           {call(t, bob, delegation(t, host, alice, func(d *Delegation) { d.Command = "/lmos/invoke" }), onward), ""},
		"eight links":                  {call(t, host+8, many[:8]...), ""},
		"nine links":                   {call(t, host+9, many...), TooLarge},
		"no tokens":                    {nil, InvalidClaim},
		"no invocation":                {bytesOf(root, onward), InvalidClaim},
		"two invocations":              {append(call(t, alice, root), invocation(t, host, nil, nil).Bytes()), InvalidClaim},
		"no proofs":                    {call(t, alice), InvalidClaim},
		"a dropped link":               {call(t, bob, root), InvalidAudience},
		"the first link dropped":       {call(t, bob, onward), InvalidSubject},
		"a link that is not sent":      {call(t, bob, root, onward)[1:], UnavailableProof},
		"links in the wrong order":     {call(t, bob, onward, root), InvalidSubject},
		"a proof twice":                {call(t, alice, root, root), InvalidClaim},
		"to oneself":                   {call(t, alice, root, delegation(t, alice, alice, nil)), InvalidClaim},
		"back to an earlier holder":    {call(t, alice, root, onward, delegation(t, bob, alice, nil)), InvalidClaim},
		"back to the host":             {call(t, host, root, delegation(t, alice, host, nil)), InvalidClaim},
		"another invoker":              {call(t, carol, root, onward), InvalidAudience},
		"a broken line":                {call(t, bob, root, delegation(t, carol, bob, nil)), InvalidAudience},
		"another subject in a link":    {call(t, bob, root, delegation(t, alice, bob, func(d *Delegation) { d.Subject = id(carol) })), InvalidSubject},
		"a powerline at the root":      {call(t, alice, delegation(t, host, alice, powerline)), InvalidClaim},
		"the root is not the host's":   {call(t, alice, delegation(t, carol, alice, nil)), InvalidSubject},
		"for another host":             {bytesOf(invocation(t, alice, []*Token{root}, func(i *Invocation) { i.Subject = id(carol) }), root), WrongExecutor},
		"to another executor":          {bytesOf(invocation(t, alice, []*Token{root}, func(i *Invocation) { i.Audience = id(carol) }), root), WrongExecutor},
		"to the host by name":          {bytesOf(invocation(t, alice, []*Token{root}, func(i *Invocation) { i.Audience = id(host) }), root), ""},
		"a widened command":            {call(t, bob, root, delegation(t, alice, bob, func(d *Delegation) { d.Command = "/lmos/invoke" })), InvalidClaim},
		"another thing":                {bytesOf(invocation(t, alice, []*Token{root}, func(i *Invocation) { i.Command = "/lmos/invoke/payout/track" }), root), InvalidClaim},
		"a name that only begins so":   {bytesOf(invocation(t, alice, []*Token{root}, func(i *Invocation) { i.Command = track + "all" }), root), InvalidClaim},
		"a policy":                     {call(t, alice, limited), MatchError},
		"a policy that the next drops": {call(t, bob, limited, onward), MatchError},
		"a policy of the second":       {call(t, bob, root, delegation(t, alice, bob, func(d *Delegation) { d.Policy = where(t, []any{"==", ".amount", 1}) })), MatchError},
		"no end of a delegation":       {call(t, alice, delegation(t, host, alice, func(d *Delegation) { d.Expires = time.Time{} })), InvalidClaim},
		"no end of the invocation":     {bytesOf(invocation(t, alice, []*Token{root}, func(i *Invocation) { i.Expires = time.Time{} }), root), InvalidClaim},
		"a delegation of 31 days":      {call(t, alice, delegation(t, host, alice, func(d *Delegation) { d.Expires = noon.Add(31 * 24 * time.Hour) })), InvalidClaim},
		"a delegation of 30 days":      {call(t, alice, delegation(t, host, alice, func(d *Delegation) { d.Expires = noon.Add(MaxDelegation) })), ""},
		"31 days that began before": {call(t, alice, delegation(t, host, alice, func(d *Delegation) {
			d.NotBefore, d.Expires = noon.Add(-30*24*time.Hour), noon.Add(24*time.Hour)
		})), InvalidClaim},
		"an invocation of 7 minutes": {bytesOf(invocation(t, alice, []*Token{root}, func(i *Invocation) { i.Expires = noon.Add(7 * time.Minute) }), root), InvalidClaim},
		"a web DID as the audience": {bytesOf(delegation(t, host, alice, func(d *Delegation) { d.Audience = "did:web:acme.example" }),
			invocation(t, alice, nil, nil)), InvalidClaim},
		"more bytes than allowed": {append(call(t, alice, root), make([]byte, MaxBytes)), TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := verifier().Verify(c.tokens, noon)
			checkReason(t, err, c.want)
		})
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	later := delegation(t, host, alice, func(d *Delegation) { d.NotBefore = noon.Add(2 * time.Minute) })
	for name, c := range map[string]struct {
		tokens [][]byte
		at     time.Duration // after noon
		want   Reason
		by     time.Duration
	}{
		"at the end":                    {call(t, alice, delegation(t, host, alice, nil)), time.Minute, "", 0},
		"the last second of the skew":   {call(t, alice, delegation(t, host, alice, nil)), 2*time.Minute - 1, "", 0},
		"after the skew":                {call(t, alice, delegation(t, host, alice, nil)), 2 * time.Minute, Expired, time.Minute},
		"an expired delegation":         {call(t, alice, delegation(t, host, alice, func(d *Delegation) { d.Expires = noon.Add(-time.Hour) })), 0, Expired, time.Hour},
		"too early":                     {call(t, alice, later), 59 * time.Second, TooEarly, 61 * time.Second},
		"early within the skew":         {call(t, alice, later), time.Minute, "", 0},
		"an invocation that is early":   {bytesOf(invocation(t, host, nil, func(i *Invocation) { i.NotBefore, i.Expires = noon.Add(90*time.Second), noon.Add(2*time.Minute) })), 0, TooEarly, 90 * time.Second},
		"an expiry of the distant past": {bytesOf(invocation(t, host, nil, func(i *Invocation) { i.Expires = time.Unix(-maxTime, 0) })), 0, Expired, 1<<63 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := verifier().Verify(c.tokens, noon.Add(c.at))
			checkReason(t, err, c.want)
			if e, ok := errors.AsType[*Error](err); ok && e.By != c.by {
				t.Errorf("by %v, want %v", e.By, c.by)
			}
		})
	}
	// Without a skew the bounds are exact.
	tokens := call(t, alice, delegation(t, host, alice, nil))
	v := NewVerifier(Options{})
	_, err := v.Check(tokens, noon.Add(time.Minute-1))
	checkReason(t, err, "")
	_, err = v.Check(tokens, noon.Add(time.Minute))
	checkReason(t, err, Expired)
}

// Every changed byte of every token is refused, also if the same verifier has seen the unchanged one.
func TestNoByteMayChange(t *testing.T) {
	t.Parallel()
	v := verifier()
	tokens := call(t, bob, delegation(t, host, alice, nil), delegation(t, alice, bob, nil))
	if _, err := v.Verify(tokens, noon); err != nil {
		t.Fatal(err)
	}
	for n, token := range tokens {
		for i := range token {
			changed := slices.Clone(tokens)
			changed[n] = bytes.Clone(token)
			changed[n][i] ^= 0x01
			if _, err := v.Verify(changed, noon); err == nil {
				t.Errorf("byte %d of token %d may change", i, n)
			}
		}
	}
}

func TestRevoked(t *testing.T) {
	t.Parallel()
	first, second := delegation(t, host, alice, nil), delegation(t, alice, bob, nil)
	revoked := map[CID]did.DID{}
	v := NewVerifier(Options{Host: id(host), Revoked: func(id CID, issuers []did.DID) bool {
		by, ok := revoked[id]
		return ok && slices.Contains(issuers, by)
	}})
	tokens, direct := call(t, bob, first, second), call(t, alice, first)
	for _, c := range []struct {
		name         string
		id           CID
		by           int
		long, direct Reason
	}{
		{"nothing", CID{}, host, "", ""},
		{"the second by its issuer", second.CID(), alice, Revoked, ""},
		{"the second by the host", second.CID(), host, Revoked, ""},
		{"the second by its audience", second.CID(), bob, "", ""},
		{"the first by the one after it", first.CID(), alice, "", ""},
		{"the first by the host", first.CID(), host, Revoked, Revoked},
		{"by one outside the chain", first.CID(), carol, "", ""},
	} {
		clear(revoked)
		revoked[c.id] = id(c.by)
		t.Run(c.name, func(t *testing.T) {
			_, err := v.Verify(tokens, noon) // memoized after the first case
			checkReason(t, err, c.long)
			_, err = v.Verify(direct, noon)
			checkReason(t, err, c.direct)
		})
	}
}

// forge signs any payload, which Sign would refuse.
func forge(t testing.TB, n int, tag string, header []byte, payload any) []byte {
	t.Helper()
	message, err := cbor.MarshalDAG(map[string]any{"h": header, tag: payload})
	if err != nil {
		t.Fatal(err)
	}
	return envelope(t, n, message)
}

// envelope signs a message with the nth key and puts it into an envelope.
func envelope(t testing.TB, n int, message []byte) []byte {
	t.Helper()
	key := ed25519.NewKeyFromSeed(append([]byte{byte(n), byte(n >> 8), 1}, make([]byte, 29)...))
	signature, err := cbor.MarshalDAG(ed25519.Sign(key, message))
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat([]byte{0x82}, signature, message)
}

// payloads of a valid invocation and a valid delegation by the host.
func validInvocation() map[string]any {
	return map[string]any{"iss": string(id(host)), "sub": string(id(host)), "cmd": string(track), "args": map[string]any{}, "prf": []any{},
		"nonce": []byte{1}, "exp": noon.Unix() + 60}
}

func validDelegation() map[string]any {
	return map[string]any{"iss": string(id(host)), "aud": string(id(alice)), "sub": nil, "cmd": "/", "pol": []any{}, "nonce": []byte{1}, "exp": nil}
}

func TestParse(t *testing.T) {
	t.Parallel()
	weak := "did:key:" + did.EncodeBase58(append([]byte{0xed, 1}, make([]byte, 32)...)) // a point of order 4
	for name, c := range map[string]struct {
		base   func() map[string]any
		member string
		value  any // deleted: no member
		want   Reason
	}{
		"a valid invocation":           {validInvocation, "iat", noon.Unix(), ""},
		"a valid delegation":           {validDelegation, "nbf", noon.Unix(), ""},
		"meta":                         {validDelegation, "meta", map[string]any{"x": 1}, ""},
		"meta that is no map":          {validDelegation, "meta", 1, InvalidClaim},
		"a cause":                      {validInvocation, "cause", cbor.Link{0, 1}, ""},
		"a cause that is no link":      {validInvocation, "cause", "x", InvalidClaim},
		"an unknown member":            {validDelegation, "max", 1, InvalidClaim},
		"a member of the other":        {validDelegation, "args", map[string]any{}, InvalidClaim},
		"no issuer":                    {validInvocation, "iss", deleted{}, InvalidClaim},
		"an issuer that is no DID":     {validInvocation, "iss", "alice", InvalidClaim},
		"a weak key":                   {validInvocation, "iss", weak, InvalidClaim},
		"a P-256 key":                  {validInvocation, "iss", "did:key:zDnaerDaTF5BXEavCrfRZEk316dpbLsfPDZ3WJ5hRTPFU2169", InvalidClaim},
		"no audience":                  {validDelegation, "aud", deleted{}, InvalidClaim},
		"a null audience":              {validDelegation, "aud", nil, InvalidClaim},
		"no subject":                   {validDelegation, "sub", deleted{}, InvalidClaim},
		"a null subject to invoke":     {validInvocation, "sub", nil, InvalidClaim},
		"no command":                   {validDelegation, "cmd", deleted{}, InvalidClaim},
		"a command in upper case":      {validDelegation, "cmd", "/Lmos", InvalidClaim},
		"a command of a relative path": {validDelegation, "cmd", "lmos", InvalidClaim},
		"no policy":                    {validDelegation, "pol", deleted{}, InvalidClaim},
		"a null policy":                {validDelegation, "pol", nil, InvalidClaim},
		"an unknown operator":          {validDelegation, "pol", []any{[]any{"~", ".a", 1}}, InvalidClaim},
		"a selector without a dot":     {validDelegation, "pol", []any{[]any{"==", "a", 1}}, InvalidClaim},
		"no arguments":                 {validInvocation, "args", deleted{}, InvalidClaim},
		"a list of arguments":          {validInvocation, "args", []any{1}, InvalidClaim},
		"no proofs":                    {validInvocation, "prf", deleted{}, InvalidClaim},
		"a proof as text":              {validInvocation, "prf", []any{"zdpu"}, InvalidClaim},
		"a proof of another hash":      {validInvocation, "prf", []any{cbor.Link(append([]byte{0, 1, 0x71, 0x13, 0x20}, make([]byte, 32)...))}, InvalidClaim},
		"a short proof":                {validInvocation, "prf", []any{cbor.Link(append([]byte{0, 1, 0x71, 0x12, 0x20}, make([]byte, 31)...))}, InvalidClaim},
		"no nonce":                     {validInvocation, "nonce", deleted{}, InvalidClaim},
		"a nonce as text":              {validInvocation, "nonce", "1", InvalidClaim},
		"an empty nonce":               {validInvocation, "nonce", []byte{}, ""},
		"no expiry":                    {validInvocation, "exp", deleted{}, InvalidClaim},
		"a null expiry":                {validInvocation, "exp", nil, ""},
		"an expiry as float":           {validInvocation, "exp", 1.7e9, InvalidClaim},
		"an expiry as text":            {validInvocation, "exp", "1", InvalidClaim},
		"the last second":              {validInvocation, "exp", 1<<53 - 1, ""},
		"a second more":                {validInvocation, "exp", 1 << 53, InvalidClaim},
		"the first second":             {validDelegation, "nbf", -(1<<53 - 1), ""},
		"a second less":                {validDelegation, "nbf", -(1 << 53), InvalidClaim},
		"2^63":                         {validInvocation, "exp", uint64(1 << 63), InvalidClaim},
		"-2^63":                        {validInvocation, "nbf", int64(-1 << 63), InvalidClaim},
		"the year 1":                   {validInvocation, "exp", time.Time{}.Unix(), InvalidClaim},
		"a null beginning":             {validInvocation, "nbf", nil, InvalidClaim},
		"an integer beyond int64":      {validInvocation, "args", map[string]any{"n": uint64(1 << 63)}, InvalidClaim},
		"the largest integer":          {validInvocation, "args", map[string]any{"n": int64(1<<63 - 1)}, ""},
		"a token too large":            {validInvocation, "args", map[string]any{"n": make([]byte, MaxBytes)}, TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			payload, tag := c.base(), invocationTag
			if payload["aud"] != nil {
				tag = delegationTag
			}
			payload[c.member] = c.value
			if c.value == (deleted{}) {
				delete(payload, c.member)
			}
			_, err := Parse(forge(t, host, tag, varsig, payload))
			checkReason(t, err, c.want)
		})
	}
}

// deleted stands for a member that is not there.
type deleted struct{}

func TestParseEnvelope(t *testing.T) {
	t.Parallel()
	valid := forge(t, host, invocationTag, varsig, validInvocation())
	message := valid[67:]
	if _, err := NewVerifier(Options{}).Check([][]byte{valid}, noon); err != nil {
		t.Fatal(err)
	}
	other := func(b ...byte) []byte { return forge(t, host, invocationTag, b, validInvocation()) }
	for name, c := range map[string]struct {
		token []byte
		want  Reason
	}{
		"nothing":                   {nil, InvalidClaim},
		"a trailing byte":           {append(bytes.Clone(valid), 0), InvalidClaim},
		"a third element":           {append(append([]byte{0x83}, valid[1:]...), 0), InvalidClaim},
		"one element":               {slices.Concat([]byte{0x81}, message), InvalidClaim},
		"a long form of the length": {slices.Concat([]byte{0x98, 0x02}, valid[1:]), InvalidClaim},
		"an indefinite list":        {slices.Concat([]byte{0x9f}, valid[1:], []byte{0xff}), InvalidClaim},
		"a signature as text":       {slices.Concat([]byte{0x82, 0x61, 'a'}, message), InvalidClaim},
		"a short signature":         {slices.Concat([]byte{0x82, 0x41, 1}, message), InvalidSignature},
		"an empty signature":        {slices.Concat([]byte{0x82, 0x40}, message), InvalidSignature},
		"the signature of another":  {envelope(t, alice, message), InvalidSignature},
		"a header of secp256k1":     {other(0x34, 0x01, 0xec, 0x01, 0xe7, 0x01, 0x12, 0x71), InvalidSignature},
		"a header of DAG-JSON":      {other(0x34, 0x01, 0xed, 0x01, 0xed, 0x01, 0x13, 0xa9, 0x02), InvalidSignature},
		"an empty header":           {other(), InvalidSignature},
		"a release candidate":       {forge(t, host, "ucan/inv@1.0.0-rc.1", varsig, validInvocation()), InvalidClaim},
		"another kind":              {forge(t, host, "ucan/rcp@1.0.0", varsig, validInvocation()), InvalidClaim},
		"a payload that is no map":  {forge(t, host, invocationTag, varsig, []any{}), InvalidClaim},
		"keys in another order":     {envelope(t, host, slices.Concat([]byte{0xa2}, message[12:], message[1:12])), InvalidClaim},
		"a third key":               {envelope(t, host, slices.Concat([]byte{0xa3}, message[1:], []byte("\x6fucan/inv@1.0.0x\xf6"))), InvalidClaim},
		"too deep":                  {envelope(t, host, slices.Concat([]byte{0xa2, 0x61, 'h', 0x48}, varsig, []byte("\x6e"+invocationTag), bytes.Repeat([]byte{0x81}, 60000), []byte{0xf6})), InvalidClaim},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := NewVerifier(Options{}).Check([][]byte{c.token}, noon)
			checkReason(t, err, c.want)
		})
	}
}

// A signature by a key of a DID of another method cannot be verified.
func TestIssuerOfAnotherMethod(t *testing.T) {
	t.Parallel()
	payload := validInvocation()
	payload["iss"], payload["sub"] = "did:web:acme.example", "did:web:acme.example"
	_, err := NewVerifier(Options{}).Check([][]byte{forge(t, host, invocationTag, varsig, payload)}, noon)
	checkReason(t, err, InvalidSignature)
}

func TestSign(t *testing.T) {
	t.Parallel()
	d := Delegation{Audience: id(alice), Subject: id(host), Command: track, Policy: where(t, []any{"like", ".to", "Berlin*"}),
		NotBefore: noon, Expires: noon.Add(time.Hour)}
	token := signed(t, d, host)
	got := token.Delegation()
	if got.Issuer != id(host) || got.Audience != d.Audience || got.Subject != d.Subject || got.Command != track || !got.NotBefore.Equal(noon) ||
		!got.Expires.Equal(d.Expires) || len(got.Nonce) != 12 || token.Invocation() != nil {
		t.Errorf("got %+v", got)
	}
	if again := signed(t, d, host); again.CID() == token.CID() {
		t.Error("two delegations have one nonce")
	}
	if again := signed(t, *got, host); again.CID() != token.CID() {
		t.Error("an equal delegation is another token")
	}
	if parsed, err := Parse(token.Bytes()); err != nil || parsed.CID() != token.CID() {
		t.Errorf("parsed as %v, %v", parsed, err)
	}
	for name, d := range map[string]Delegation{
		"no audience":     {Subject: id(host), Command: track},
		"no command":      {Audience: id(alice), Subject: id(host)},
		"a wrong subject": {Audience: id(alice), Subject: "x", Command: track},
	} {
		if _, err := d.Sign(didtest.Key(host)); !errors.Is(err, InvalidClaim) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (Invocation{Subject: id(host), Command: track, Args: map[string]any{"c": make(chan int)}}).Sign(didtest.Key(host)); err == nil {
		t.Error("signed a channel")
	}
}

func TestCID(t *testing.T) {
	t.Parallel()
	token := delegation(t, host, alice, nil)
	text, err := token.CID().MarshalText()
	if err != nil || !strings.HasPrefix(string(text), "zdpu") || string(text) != token.CID().String() {
		t.Fatalf("%s, %v", text, err)
	}
	var again CID
	if err := again.UnmarshalText(text); err != nil || again != token.CID() {
		t.Errorf("%s, %v", again, err)
	}
	for _, s := range []string{"", "zdpu", "z", string(text[:len(text)-1]), string(text) + "1", "u" + string(text[1:]), strings.Replace(string(text), "zdpu", "z1dpu", 1), string(id(host))} {
		if c, err := ParseCID(s); !errors.Is(err, InvalidClaim) {
			t.Errorf("%q is read as %s", s, c)
		}
	}
}

// The memo is bounded, keeps only tokens of verified chains, and no large ones.
func TestMemoIsBounded(t *testing.T) {
	t.Parallel()
	v := verifier()
	root := delegation(t, host, alice, nil)
	large := invocation(t, alice, []*Token{root}, func(i *Invocation) { i.Args = map[string]any{"x": make([]byte, memoBytes)} })
	for name, tokens := range map[string][][]byte{
		"another chain": call(t, bob, delegation(t, carol, bob, nil)),
		"a wrong one":   call(t, bob, root),
	} {
		if _, err := v.Verify(tokens, noon); err == nil || len(v.delegations)+len(v.invocations) != 0 {
			t.Errorf("%s is kept, or valid: %v", name, err)
		}
	}
	if _, err := v.Verify(bytesOf(root, large), noon); err != nil || len(v.delegations) != 1 || len(v.invocations) != 0 {
		t.Errorf("%d delegations and %d invocations are kept: %v", len(v.delegations), len(v.invocations), err)
	}
	for n := range memoTokens + 10 {
		token := *large
		token.cid, token.bytes = CID{byte(n), byte(n >> 8)}, nil
		v.remember(&token, nil)
	}
	if len(v.delegations) != 1 || len(v.invocations) != memoTokens {
		t.Errorf("%d delegations and %d invocations are kept", len(v.delegations), len(v.invocations))
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"/", "/crud", "/crud/create", "/foo/bar/baz/qux/quux", "/ほげ/ふが", "/lmos/invoke/a%2fb"} {
		if _, err := ParseCommand(s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []string{"", "crud", "/crud/", "//", "/crud//create", "/Crud", "/É", "/\xff", "/" + strings.Repeat("a", maxCommand)} {
		if c, err := ParseCommand(s); !errors.Is(err, InvalidClaim) {
			t.Errorf("%q is %q, %v", s, c, err)
		}
	}
	for _, c := range []struct {
		a, b Command
		want bool
	}{
		{"/", "/anything/at/all", true}, {"/crypto", "/crypto/sign", true}, {"/crypto", "/crypto", true},
		{"/crypto", "/cryptocurrency", false}, {"/crypto", "/stack/pop", false}, {"/crypto/sign", "/crypto", false}, {"/a", "/", false},
	} {
		if c.a.Covers(c.b) != c.want {
			t.Errorf("%s covers %s: want %v", c.a, c.b, c.want)
		}
	}
}

func TestAction(t *testing.T) {
	t.Parallel()
	for a, want := range map[Action]Command{
		{"invoke", "logistics", "track"}:     track,
		{"invoke", "weather", "getWeather"}:  "/lmos/invoke/weather/get%57eather",
		{"read", "urn:lmos:x:a", "temp/now"}: "/lmos/read/urn%3almos%3ax%3aa/temp%2fnow",
		{"write", "a%2fb", "ü"}:              "/lmos/write/a%252fb/%c3%bc",
		{"subscribe", "..", "."}:             "/lmos/subscribe/../.",
		{"invoke", "logistics", ""}:          "/lmos/invoke/logistics",
		{"find", "logistics", ""}:            "/lmos/find/logistics",
		{"find", "", ""}:                     "/lmos/find",
	} {
		c, err := a.Command()
		if err != nil || c != want {
			t.Errorf("%+v is %s, %v; want %s", a, c, err, want)
		}
		if again, err := ParseAction(c); err != nil || again != a {
			t.Errorf("%s is %+v, %v; want %+v", c, again, err, a)
		}
	}
	for _, a := range []Action{{}, {"lend", "a", "b"}, {"find", "a", "b"}, {"invoke", "", "b"}, {"invoke/x", "a", "b"}, {"invoke", strings.Repeat("A", 2000), ""}} {
		if c, err := a.Command(); !errors.Is(err, InvalidClaim) {
			t.Errorf("%.50v is %s", a, c)
		}
	}
	for _, c := range []Command{"/", "/lmos", "/lmos/", "/ucan/revoke", "/lmos/lend/a", "/lmos/invoke/a/b/c", "/lmos/invoke/a%2Fb", "/lmos/invoke/%61", "/lmos/invoke/%", "/lmos/invoke/%4",
		"/lmos/invoke/%zz", "/lmos/invoke/a:b", "/lmos/invoke//b", "/lmos/find/a/b", "/lmos/invoke/%+4"} {
		if a, err := ParseAction(c); !errors.Is(err, InvalidClaim) {
			t.Errorf("%s is %+v", c, a)
		}
	}
}

func TestArgs(t *testing.T) {
	t.Parallel()
	root := delegation(t, host, alice, nil)
	for name, c := range map[string]struct {
		input string
		want  map[string]any
	}{
		"nothing":     {"", map[string]any{}},
		"an object":   {`{"a":1,"b":[1.5,2.0,{"c":-0}]}`, map[string]any{"a": 1, "b": []any{1.5, 2, map[string]any{"c": 0}}}},
		"a text":      {`"x"`, map[string]any{"value": "x"}},
		"null":        {`null`, map[string]any{"value": nil}},
		"a list":      {`[1]`, map[string]any{"value": []any{1}}},
		"beyond 2^53": {`{"a":1e300}`, map[string]any{"a": 1e300}},
		"the bound":   {`{"a":9007199254740991}`, map[string]any{"a": 1<<53 - 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			invoke := invocation(t, alice, []*Token{root}, func(i *Invocation) { i.Args = c.want })
			chain, err := verifier().Verify(bytesOf(root, invoke), noon)
			if err != nil {
				t.Fatal(err)
			}
			args, err := Args([]byte(c.input))
			var m match
			if err != nil || !m.equal(args, chain.Args) || m.equal(map[string]any{"a": 2}, chain.Args) {
				t.Errorf("got %v, %v", args, err)
			}
		})
	}
	for _, input := range []string{`{`, `{"a":1,"a":2}`, `"\ud800"`, `{"a":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, `"` + strings.Repeat("a", MaxBytes) + `"`} {
		if args, err := Args([]byte(input)); !errors.Is(err, InvalidClaim) {
			t.Errorf("%.40s is %v", input, args)
		}
	}
}

// FuzzParse: what is read has one form, and its parts are those of the bytes.
func FuzzParse(f *testing.F) {
	root := delegation(f, host, alice, func(d *Delegation) { d.Policy = where(f, []any{"any", ".a[0:2]", []any{"like", ".", "x*"}}) })
	f.Add(root.Bytes())
	f.Add(invocation(f, alice, []*Token{root}, nil).Bytes())
	f.Add(forge(f, host, invocationTag, varsig, validInvocation()))
	f.Fuzz(func(t *testing.T, b []byte) {
		token, err := Parse(b)
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("%v is no *Error", err)
			}
			return
		}
		if (token.Delegation() == nil) == (token.Invocation() == nil) {
			t.Fatal("neither or both kinds")
		}
		if !bytes.HasSuffix(b, token.signed) {
			t.Fatal("the signed part is not the end")
		}
		if _, err := NewVerifier(Options{Host: id(host)}).Verify([][]byte{b}, noon); err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("%v is no *Error", err)
			}
		}
	})
}

// BenchmarkChainOfThree is an invocation with two delegations, from bytes to the result.
func BenchmarkChainOfThree(b *testing.B) {
	first := delegation(b, host, alice, func(d *Delegation) { d.Policy = where(b, []any{"<=", ".amount", 100}) })
	second := delegation(b, alice, bob, nil)
	tokens := call(b, bob, first, second)
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := verifier().Verify(tokens, noon); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("seen", func(b *testing.B) {
		b.ReportAllocs()
		v := verifier()
		for b.Loop() {
			if _, err := v.Verify(tokens, noon); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("delegations seen", func(b *testing.B) {
		v := verifier()
		var calls [][][]byte
		for range 200 {
			calls = append(calls, call(b, bob, first, second))
		}
		n := 0
		for b.Loop() {
			if n++; n%len(calls) == 0 {
				clear(v.invocations)
			}
			if _, err := v.Verify(calls[n%len(calls)], noon); err != nil {
				b.Fatal(err)
			}
		}
	})
}
