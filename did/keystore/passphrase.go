package keystore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"filippo.io/age"
	"filippo.io/age/armor"
)

// Errors of encrypted key files.
var (
	// ErrLocked means that the key file is encrypted and no passphrase was given.
	ErrLocked = errors.New("the key file is encrypted with a passphrase")
	// ErrPassphrase means that the passphrase does not fit the encrypted text.
	ErrPassphrase = errors.New("the passphrase is wrong")
)

// Work factors of scrypt, as powers of 2 (C2SP age, "scrypt recipient stanza"). 15 takes 0.1 s and 32 MiB, 18 takes 0.7 s and 256 MiB.
const (
	workFactor    = 15
	maxWorkFactor = 18 // that of the age command
)

// maxPassphrase limits a passphrase, in bytes.
const maxPassphrase = 1024

// A Passphrase encrypts key files. It is secret: no format prints it. The zero value is no passphrase.
type Passphrase struct {
	// text is a function for the reason that it is one in [Key].
	text func() string
}

// NewPassphrase returns the passphrase with a text: UTF-8 of 1 to 1024 bytes. The error does not quote it.
func NewPassphrase(text string) (Passphrase, error) {
	switch {
	case text == "":
		return Passphrase{}, errors.New("the passphrase is empty")
	case len(text) > maxPassphrase:
		return Passphrase{}, fmt.Errorf("the passphrase has more than %d bytes", maxPassphrase)
	case !utf8.ValidString(text):
		return Passphrase{}, errors.New("the passphrase is not UTF-8")
	}
	return Passphrase{func() string { return text }}, nil
}

// IsZero reports whether p is no passphrase.
func (p Passphrase) IsZero() bool { return p.text == nil }

// Encrypt returns plain as an age file in ASCII armor, encrypted with p (scrypt, work factor 15).
func Encrypt(plain []byte, p Passphrase) ([]byte, error) {
	if p.IsZero() {
		return nil, errors.New("encrypt: no passphrase")
	}
	r, err := age.NewScryptRecipient(p.text())
	if err != nil {
		return nil, err
	}
	r.SetWorkFactor(workFactor)
	var text bytes.Buffer
	armored := armor.NewWriter(&text)
	w, err := age.Encrypt(armored, r)
	if err != nil {
		return nil, err
	}
	// A writer that fails to close has not written the end of the file.
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := errors.Join(w.Close(), armored.Close()); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// Decrypt returns the plain text of an armored age file for a passphrase, as [Encrypt] and `age -p --armor` write it. Text and plain text
// have 16 KiB at most. The error wraps [ErrPassphrase] if the passphrase is wrong; errors quote neither the text nor the passphrase.
func Decrypt(text []byte, p Passphrase) ([]byte, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("the encrypted text is larger than %d bytes", maxFile)
	}
	if p.IsZero() {
		return nil, ErrLocked
	}
	i, err := age.NewScryptIdentity(p.text())
	if err != nil {
		return nil, err
	}
	i.SetMaxWorkFactor(maxWorkFactor)
	r, err := age.Decrypt(armor.NewReader(bytes.NewReader(bytes.TrimSpace(text))), i)
	if mismatch, ok := errors.AsType[*age.NoIdentityMatchError](err); ok && slices.Equal(mismatch.StanzaTypes, []string{"scrypt"}) {
		return nil, ErrPassphrase
	}
	if err != nil {
		return nil, errDamaged
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		return nil, errDamaged
	}
	return plain, nil
}

// errDamaged replaces errors of age, which quote the file.
var errDamaged = fmt.Errorf("the encrypted file is damaged, is not for a passphrase, or has a work factor above %d", maxWorkFactor)

// isEncrypted reports whether text is an armored age file.
func isEncrypted(text []byte) bool {
	return bytes.HasPrefix(bytes.TrimSpace(text), []byte(armor.Header))
}
