package credentials

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/lmosd/lmosd/interact"
)

// maxKey is the limit of a file with a private key, in bytes.
const maxKey = 64 << 10

// Confidential tells whether this is the credential of a client of OAuth that shows by itself who it is, by a secret or by a key
// (RFC 6749 §2.1).
func (c Credential) Confidential() bool {
	return c.Username != "" && (c.Password != "" || c.PrivateKeyFile != "")
}

// PrivateKey reads the private key of a client, which nobody else may be able to read (mode 0600): PEM, as PKCS #8, or as openssl
// has written keys of RSA and of elliptic curves before. The file is read each time, so that another key may be put there. The
// error names the file without its folder, and has nothing of what is in it.
func (c Credential) PrivateKey() (crypto.Signer, error) {
	name := filepath.Base(c.PrivateKeyFile)
	raw, err := ReadPrivate(c.PrivateKeyFile, maxKey)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the private key %s is not there", name)
	case err != nil && interact.AsError(err).Code == interact.KeyPermissions:
		return nil, fmt.Errorf("the private key %s can be read by others than its owner: chmod 600", name)
	case err != nil:
		return nil, fmt.Errorf("the private key %s cannot be read", name)
	}
	key, err := parsePrivateKey(raw)
	if err != nil {
		return nil, fmt.Errorf("the private key %s cannot be used: %w", name, err)
	}
	return key, nil
}

// parsePrivateKey returns the first private key of a PEM file. Its errors are its own: those of parsers could quote the key.
func parsePrivateKey(raw []byte) (crypto.Signer, error) {
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY": // RFC 5958
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY": // RFC 5915
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY": // RFC 8017 §A.1.2
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "ENCRYPTED PRIVATE KEY":
			return nil, errors.New("it is encrypted")
		default:
			continue // parameters of a curve, certificates
		}
		if signer, ok := key.(crypto.Signer); ok && err == nil {
			return signer, nil
		}
		return nil, errors.New("it is damaged, or encrypted, or of a kind that signs nothing")
	}
	return nil, errors.New("there is none in the file, as PEM")
}
