package mqtt

import "crypto/sha256"

// A login is the user name and password of a CONNECT; the zero value has none.
type login struct{ user, password string }

// digest distinguishes logins without holding the password.
func (l login) digest() [32]byte { return sha256.Sum256([]byte(l.user + "\x00" + l.password)) }
