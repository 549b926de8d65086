package ws

import (
	"crypto/sha256"
	"net/http"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// A login has the header and the secrets of an upgrade.
type login struct {
	header  http.Header // of the message
	secrets form.Secrets
}

// request returns header and address of the upgrade. The address has no user: secrets come from the credentials file, never from a
// description.
func (l *login) request(f *td.Form) (http.Header, string, error) {
	u, err := form.Expand(f.Href, nil)
	if err != nil {
		return nil, "", err
	}
	u.User, u.Fragment = nil, ""
	h := l.header.Clone()
	l.secrets.Apply(h, u)
	return h, u.String(), nil
}

// sum distinguishes logins without revealing them.
func (l *login) sum() [sha256.Size]byte { return l.secrets.Sum() }

// scrub removes the text of an agent if it repeats a secret.
func (l *login) scrub(err error) error {
	e := interact.AsError(err)
	if e == nil || !e.Remote || !l.secrets.IsRepeatedIn(e) {
		return err
	}
	return &interact.Error{Code: e.Code, Remote: true, Title: "the agent failed " + form.Scrubbed,
		Hint: "see the agent's log"}
}
