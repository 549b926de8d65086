package p2p

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	"github.com/multiformats/go-multistream"
)

// alpnWithoutMuxer is the ALPN of a peer that negotiates the muxer later (libp2p TLS specification).
const alpnWithoutMuxer = "libp2p"

// timeless makes a certificate valid at all times. That of libp2p begins one hour before the clock of its maker, so that peers
// whose clocks are further behind reject the connection without a reason. The times add no security: the certificate is created at
// each start, self-signed, and bound to the node by a signature of its key. The end is that of RFC 5280 §4.1.2.5.
func timeless() (libp2ptls.IdentityOption, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 62))
	if err != nil {
		return nil, err
	}
	return libp2ptls.WithCertTemplate(&x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{SerialNumber: serial.String()}, // RFC 5280 §4.1.2.4: an issuer has a name
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
	}), nil
}

// A tlsTransport is the TLS transport of libp2p with a timeless certificate, for which libp2p has no setting.
type tlsTransport struct {
	identity *libp2ptls.Identity
	self     peer.ID
	muxers   []string
}

func newTLS(priv crypto.PrivKey, muxers []upgrader.StreamMuxer) (*tlsTransport, error) {
	self, err := peer.IDFromPrivateKey(priv)
	if err != nil {
		return nil, err
	}
	opt, err := timeless()
	if err != nil {
		return nil, err
	}
	identity, err := libp2ptls.NewIdentity(priv, opt)
	if err != nil {
		return nil, err
	}
	t := &tlsTransport{identity: identity, self: self}
	for _, m := range muxers {
		t.muxers = append(t.muxers, string(m.ID))
	}
	return t, nil
}

// isSelf makes the handshake of a connection to this node itself.
func (t *tlsTransport) isSelf(ctx context.Context, c net.Conn) error {
	if err := multistream.SelectProtoOrFail(t.ID(), c); err != nil {
		return err
	}
	s, err := t.SecureOutbound(ctx, c, t.self)
	if err == nil {
		_ = s.Close() // the other end rejects a connection to itself, and may have closed it before
	}
	return err
}

// ID implements sec.SecureTransport.
func (t *tlsTransport) ID() protocol.ID { return libp2ptls.ID }

// SecureInbound is the handshake of a server. An empty p accepts any peer. The preference of the client selects the muxer.
func (t *tlsTransport) SecureInbound(ctx context.Context, raw net.Conn, p peer.ID) (sec.SecureConn, error) {
	config, key := t.identity.ConfigForPeer(p)
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		own := config.Clone()
		own.NextProtos = append(slices.Clone(t.muxers), alpnWithoutMuxer)
		if i := slices.IndexFunc(hello.SupportedProtos, func(s string) bool { return slices.Contains(t.muxers, s) }); i >= 0 {
			own.NextProtos = []string{hello.SupportedProtos[i]}
		}
		return own, nil
	}
	return t.secure(ctx, tls.Server(raw, config), raw, key)
}

// SecureOutbound is the handshake of a client. A rejected certificate is detected at the first read.
func (t *tlsTransport) SecureOutbound(ctx context.Context, raw net.Conn, p peer.ID) (sec.SecureConn, error) {
	config, key := t.identity.ConfigForPeer(p)
	config.NextProtos = append(slices.Clone(t.muxers), alpnWithoutMuxer)
	return t.secure(ctx, tls.Client(raw, config), raw, key)
}

// secure performs the handshake and closes the connection if it fails. A panic on untrusted bytes costs only the connection.
func (t *tlsTransport) secure(ctx context.Context, c *tls.Conn, raw net.Conn, key <-chan crypto.PubKey) (_ sec.SecureConn, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic in the TLS handshake: %v", fault)
		}
		if err != nil {
			_ = raw.Close()
		}
	}()
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	var theirs crypto.PubKey
	select {
	case theirs = <-key: // sent during the handshake
	default:
	}
	if theirs == nil {
		return nil, errors.New("the TLS handshake authenticated no key")
	}
	id, err := peer.IDFromPublicKey(theirs)
	if err != nil {
		return nil, err
	}
	s := &tlsConn{Conn: c, self: t.self, peer: id, key: theirs}
	if chosen := c.ConnectionState().NegotiatedProtocol; chosen != alpnWithoutMuxer && chosen != "" {
		s.state = network.ConnectionState{StreamMultiplexer: protocol.ID(chosen), UsedEarlyMuxerNegotiation: true}
	}
	return s, nil
}

// forClocks reports whether a dial failed because a certificate of the peer does not hold by this machine's clock. Nodes have
// certificates that always hold; older ones, and other software, have not. The library passes the reason on as text alone.
func forClocks(err error) bool {
	return err != nil && strings.Contains(err.Error(), "certificate has expired or is not yet valid")
}

// A tlsConn is a connection with authenticated keys of both ends.
type tlsConn struct {
	*tls.Conn
	self, peer peer.ID
	key        crypto.PubKey
	state      network.ConnectionState
}

func (c *tlsConn) LocalPeer() peer.ID                 { return c.self }
func (c *tlsConn) RemotePeer() peer.ID                { return c.peer }
func (c *tlsConn) RemotePublicKey() crypto.PubKey     { return c.key }
func (c *tlsConn) ConnState() network.ConnectionState { return c.state }
