package mqtt

import (
	"crypto/sha256"

	"github.com/lmosd/lmosd/interact/form"
)

// A login is the user name and password of a CONNECT; the zero value has none.
type login struct{ user, password string }

// digest distinguishes logins without holding the password.
func (l login) digest() [32]byte { return sha256.Sum256([]byte(l.user + "\x00" + l.password)) }

// addLogin takes user name and password from the credentials of a scheme.
func addLogin(l *login, s *form.Scheme) error {
	found, err := s.Credential()
	if err == nil {
		l.user, l.password = found.Username, found.Password
	}
	return err
}
