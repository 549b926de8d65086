package node

import (
	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/node/datadir"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// openAudit opens the audit log, and lets the policy record its decisions.
func (n *Node) openAudit() (err error) {
	o := n.opts.Audit
	o.Signer, o.Log = n.key, n.opts.Log
	l, err := audit.Open(o)
	if err != nil {
		return datadir.Error(n.opts.Dir, err)
	}
	if n.stores.Audit = l; l == nil {
		return nil
	}
	n.life.onClose(l.Close)
	n.life.onRun(l.Run)
	n.opts.Policy.Record = func(m *interact.Message, r access.Request, d access.Decision, code interact.Code) {
		thing := m.Thing
		if r.Target != nil {
			thing = r.Target.ID
		}
		l.Decision(audit.Decision{Who: m.From, Op: string(r.Op), Thing: thing, Name: r.Affordance, Allow: d.Allow,
			Restricted: r.Target != nil && r.Target.Visibility != td.Public, Rule: d.Rule, Code: code, Trace: m.TraceID()})
	}
	return nil
}

// recordDenied records that a node may not connect, and returns the reason.
func (n *Node) recordDenied(id did.DID, err error) error {
	if err != nil {
		n.stores.Audit.Decision(audit.Decision{Who: n.policy.Principal(id), Op: string(access.Connect), Code: interact.Forbidden})
	}
	return err
}
