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

// maxKey limits a private key file, in bytes.
const maxKey = 64 << 10

// Confidential reports whether this is the credential of a confidential OAuth client, with a secret or a key (RFC 6749 §2.1).
func (c Credential) Confidential() bool {
	return c.Username != "" && (c.Password != "" || c.PrivateKeyFile != "")
}

// PrivateKey reads the private key of a client from a file with mode 0600: PEM, as PKCS #8, or the older RSA and EC formats of
// openssl. The file is read at each call, so that the key can be replaced. The error names the file without its folder, and
// contains nothing of its content.
func (c Credential) PrivateKey() (crypto.Signer, error) {
	name := filepath.Base(c.PrivateKeyFile)
	raw, err := ReadPrivate(c.PrivateKeyFile, maxKey)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the private key %s does not exist", name)
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

// parsePrivateKey returns the first private key of a PEM file. Its errors do not wrap those of the parsers, which could quote the
// key.
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
		return nil, errors.New("it is damaged, encrypted, or not a signing key")
	}
	return nil, errors.New("no PEM private key found")
}
