// Package verify implements lmosd show --verify: it checks record, description and proof of an agent without trust in the node that returned
// them.
package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// A verification is the document of lmosd show --verify: the steps up to the first that failed.
type verification struct {
	cli.Head
	ID       string `json:"id"`
	Verified bool   `json:"verified"`
	Items    []step `json:"items"`
	err      error
}

type step struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Message string `json:"message"`
}

func (v *verification) step(name, message string, err error) bool {
	if err != nil {
		message = err.Error()
		v.err = &interact.Error{Code: interact.BadSignature, Title: "the description does not verify: " + name, Err: err,
			Hint: "do not call this agent; its node may have been tampered with"}
	}
	v.Items = append(v.Items, step{name, err == nil, message})
	v.Verified = err == nil
	return err == nil
}

// Show verifies an agent and prints the steps. If one fails, the error sets the exit code.
func Show(ctx context.Context, c *cli.Console, d *api.AgentDetail, content []byte) error {
	v := agent(ctx, d, content, time.Now())
	err := c.Show(cli.View{Doc: v, Names: []string{d.Agent.Ref}, People: func(s *terminal.Screen, _ bool) {
		for _, step := range v.Items {
			mark := s.Paint(terminal.Green, "✓")
			if !step.OK {
				mark = s.Paint(terminal.Red, "✗")
			}
			s.Item("  "+mark+" "+fmt.Sprintf("%-8s", step.Name), 12, step.Message)
		}
	}})
	switch {
	case err != nil || v.Verified:
		return err
	case c.Programs():
		return cli.SilentError(cli.ExitRefused) // the document has the reason
	}
	return v.err
}

// Hash returns the SHA-256 of a description, as the signature of an agent has it.
func Hash(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// agent checks that record, description and the answer of the node agree, and that the owner's key signed record and description.
func agent(ctx context.Context, d *api.AgentDetail, content []byte, now time.Time) *verification {
	v := &verification{Head: cli.NewHead("Verification"), ID: d.Agent.ID}
	r, err := td.NewVerifier(did.Resolvers(map[string]did.Resolver{"key": did.Keys()})).Record(d.Record, now)
	if err != nil {
		v.step("record", "", err)
		return v
	}
	if r.Owner != d.Agent.Owner || r.Thing != d.Agent.ID {
		err = fmt.Errorf("it is about %s of %s", r.Thing, r.Owner)
	}
	if r.Grant != nil && err == nil { // the verifier has checked its signature, and that it names the host
		v.step("grant", fmt.Sprintf("number %d, signed by the owner %s for %s, valid until %s", r.Grant.Number, r.Owner,
			terminal.Count(len(r.Grant.Nodes), "node", "nodes"), r.Grant.Expires.Format(time.RFC3339)), nil)
	}
	if !v.step("record", signedBy(r), err) {
		return v
	}
	if hash := Hash(content); hash != hex.EncodeToString(r.Hash[:]) {
		err = fmt.Errorf("the description has the sha256 %s, the record says %x", hash, r.Hash)
	}
	if !v.step("hash", fmt.Sprintf("the description has the sha256 that the record says, %x", r.Hash), err) {
		return v
	}
	t, err := td.Parse(content)
	if v.step("td", "valid Thing Description, "+terminal.Size(len(content)), err) && v.proof(ctx, r.Owner, content) && t.ID != r.Thing {
		v.step("id", "", fmt.Errorf("the description is of %s, not of %s", t.ID, r.Thing))
	}
	return v
}

// signedBy describes the record of an owner, or of one of the hosts of a granted Thing.
func signedBy(r *td.Record) string {
	signer := "its owner"
	if r.Grant != nil {
		signer = "its host"
	}
	return fmt.Sprintf("revision %d, signed by %s %s, valid until %s", r.Seq, signer, r.Signer(), r.Expires.UTC().Format(time.RFC3339))
}

// proof checks the proof in the description.
func (v *verification) proof(ctx context.Context, owner did.DID, content []byte) bool {
	doc, err := jcs.Decode(content, td.MaxTD)
	object, ok := doc.(map[string]any)
	if err == nil && !ok {
		err = errors.New("expected an object as the description")
	}
	if !v.step("json", "strict JSON, one meaning for every reader", err) {
		return false
	}
	signed, err := proof.Verify(ctx, object, proof.Check{})
	if err != nil {
		return v.step("proof", "", err)
	}
	if signed.Owner != owner {
		err = fmt.Errorf("signed by %s, and the owner is %s", signed.Owner, owner)
	}
	return v.step("proof", fmt.Sprintf("Data Integrity proof of %s, created %s", signed.Owner, signed.Created.Format(time.RFC3339)), err)
}
