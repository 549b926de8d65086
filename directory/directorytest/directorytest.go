// Package directorytest generates signed Thing Descriptions of synthetic agents for tests and benchmarks: of 1 to 7 kB, ten per owner, at a
// hundred hosts. Equal numbers generate equal agents.
package directorytest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/td"
)

// families and skills are the numbers of capabilities; each agent has one to three, those that [Capability] returns for it.
const (
	families = 50
	skills   = 20_000
)

// Family returns a prefix of the capabilities of one in fifty agents, including agent i.
func Family(i int) string { return fmt.Sprintf("urn:example:family-%02d", i%families) }

// Capability returns a capability of agent i, which few others have.
func Capability(i int) string { return skill(i, i) }

func skill(i, n int) string { return fmt.Sprintf("%s:skill-%05d", Family(i), n%skills) }

// ID returns the id of agent i.
func ID(i int) string { return fmt.Sprintf("urn:example:agents:%06d", i) }

// Words is the vocabulary of the agents: some words are frequent, most are rare. It is read-only.
var Words = sync.OnceValue(func() []string {
	rng := rand.New(rand.NewPCG(1, 1))
	all := strings.Fields("check stock level warehouse order invoice weather forecast billing customer ticket price report shipment")
	for len(all) < 20_000 {
		var b strings.Builder
		for range 2 + rng.IntN(3) {
			b.WriteByte("bcdfghjklmnprstvwz"[rng.IntN(18)])
			b.WriteByte("aeiou"[rng.IntN(5)])
		}
		if rng.IntN(2) == 0 {
			b.WriteByte("nrstl"[rng.IntN(5)])
		}
		all = append(all, b.String())
	}
	return all
})

// TD returns the TD of agent i: with capabilities, examples, actions and their schemas.
func TD(i int) []byte {
	rng := rand.New(rand.NewPCG(uint64(i), 2))
	zipf := rand.NewZipf(rng, 1.1, 8, uint64(len(Words())-1))
	text := func(n int) string {
		some := make([]string, n)
		for j := range some {
			some[j] = Words()[zipf.Uint64()]
		}
		return strings.Join(some, " ")
	}
	var capabilities []any
	for j := range 1 + rng.IntN(3) {
		capabilities = append(capabilities, map[string]any{
			"id": skill(i, i+j*7), "name": text(2), "version": fmt.Sprintf("1.%d.0", i%9),
			"description": text(8), "examples": []string{"Can you " + text(5) + "?", "Please " + text(6)},
		})
	}
	actions := map[string]any{}
	for j := range 1 + i%11 {
		actions[fmt.Sprintf("%s%d", text(1), j)] = map[string]any{
			"title": text(3), "description": text(10), "safe": true,
			"input": map[string]any{"type": "object", "properties": map[string]any{
				text(1): map[string]any{"type": "string", "description": text(5)}}},
			"output": map[string]any{"type": "object", "properties": map[string]any{text(1): map[string]any{"type": "number"}}},
			"forms": []any{map[string]string{"href": fmt.Sprintf("https://agents.example/%d/%d", i, j),
				"contentType": "application/json"}},
		}
	}
	raw, err := json.Marshal(map[string]any{
		"@context": []any{td.Context11, map[string]string{"lmos": td.ContextLMOS}}, "@type": []string{"lmos:Agent"},
		"id": ID(i), "title": text(3), "description": text(10 + rng.IntN(20)),
		"security": []string{"nosec"}, "securityDefinitions": map[string]any{"nosec": map[string]string{"scheme": "nosec"}},
		"lmos:capabilities": capabilities, "actions": actions,
	})
	if err != nil {
		panic(err) // cannot fail for strings and numbers
	}
	return raw
}

// Owner returns the owner of agent i.
func Owner(i int) did.DID { return key(byte(i/10), byte(i/2560), byte(i/655360), 9).DID() }

func key(seed ...byte) *keystore.Key {
	var whole [32]byte
	copy(whole[:], seed)
	k, err := keystore.FromSeed(whole)
	if err != nil {
		panic(err) // every seed is valid
	}
	return k
}

// Sign signs the agents from first to first+n with a validity of 10 h, on all processors.
func Sign(first, n int) ([]*td.Signed, error) {
	all := make([]*td.Signed, n)
	var g errgroup.Group
	for w := range runtime.GOMAXPROCS(0) {
		g.Go(func() (err error) {
			for i := w; i < n && err == nil; i += runtime.GOMAXPROCS(0) {
				all[i], err = sign(first + i)
			}
			return err
		})
	}
	return all, g.Wait()
}

func sign(i int) (*td.Signed, error) {
	owner, host := key(byte(i/10), byte(i/2560), byte(i/655360), 9), key(byte(i%100), 8)
	thing, err := td.Complete(TD(i), owner.DID())
	if err != nil {
		return nil, err
	}
	return td.Sign(thing, owner, td.Lease{Seq: 1, Now: time.Now(), Lifetime: 10 * time.Hour,
		Hosts: []td.Host{{Node: host.DID(), Addrs: []string{"/ip4/192.0.2.17/udp/4001/quic-v1", "/ip4/192.0.2.17/tcp/4001"}}}})
}
