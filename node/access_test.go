package node

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
)

// withRules returns the rules of callers with access rules; untrusted has the rights of untrusted ones.
func withRules(untrusted string, all ...access.Rule) policy.Rules {
	return policy.Rules{Options: rules.Options{Untrusted: cmp.Or(untrusted, access.UntrustedOpen), More: []func(*access.Builder) error{func(b *access.Builder) error {
		for i, r := range all {
			if err := b.AddRule(strconv.Itoa(i), r); err != nil {
				return err
			}
		}
		return nil
	}}}}
}

func allowed(id did.DID) access.Rule {
	return access.Rule{Allow: []string{string(id)}, To: []string{"connect", "store", "find", "call"}}
}

func denied(id did.DID) access.Rule {
	return access.Rule{Deny: []string{string(id)}, To: []string{"*"}}
}

func denying(id did.DID) policy.Rules { return withRules("", denied(id)) }

// members returns the principals of nodes, of which some are of the own organization.
func members(ids ...did.DID) func(did.DID) *did.Principal {
	return func(node did.DID) *did.Principal {
		p := did.NodePrincipal(node, "")
		if slices.Contains(ids, node) {
			p.Relation = did.Own
		}
		return p
	}
}

// rulesFile returns the path of a file of access rules.
func rulesFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
