package explore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/discovery/dnssd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
)

// Configured introductions are fetched over TLS only, within limits.
const (
	endpointsMax  = 16 // of one DID document
	addrsMax      = 8  // of one host
	lookupTimeout = 5 * time.Second
)

// A change is a change of an introduction, of the network or configured.
type change struct {
	dnssd.Change
	// configuredHost is the host of a configured introduction, which may have any address. Other hosts in its documents must have public
	// addresses.
	configuredHost string
}

// CheckConfigured validates an entry of Options.Configured: a did:web, or an https URL.
func CheckConfigured(where string) error {
	_, err := hostOf(where)
	return err
}

// hostOf returns the host of an entry of Options.Configured.
func hostOf(where string) (host string, err error) {
	address := where
	if strings.HasPrefix(where, "did:") {
		if address, err = web.URL(did.DID(where)); err != nil {
			return "", err
		}
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return "", fmt.Errorf("expected a did:web or an https URL, got %q", where)
	}
	return u.Hostname(), nil
}

// watchConfigured sends the introductions of an entry, at once and every 10 minutes, until ctx ends. A failure removes no introductions.
func (d *Discoveries) watchConfigured(ctx context.Context, where string, changes chan<- change) {
	known := map[string]dnssd.Introduction{}
	for {
		found, err := d.introductions(ctx, where)
		if err != nil && ctx.Err() == nil {
			d.o.Log.Warn("configured introduction failed", "introduction", where, "err", err)
		}
		d.states.resolved(where, err, time.Now())
		host, _ := hostOf(where) // checked by CheckConfigured
		for _, c := range differences(known, found, err) {
			select {
			case changes <- change{c, host}:
			case <-ctx.Done():
				return
			}
		}
		if backoff.Sleep(ctx, visitInterval) != nil {
			return
		}
	}
}

// differences updates known to found, and returns the changes. If failed is not nil, it removes no introduction.
func differences(known map[string]dnssd.Introduction, found []dnssd.Introduction, failed error) (all []dnssd.Change) {
	for _, in := range found {
		if old, ok := known[in.Name]; !ok || old.Type != in.Type || !slices.Equal(old.Addrs, in.Addrs) {
			known[in.Name] = in
			all = append(all, dnssd.Change{Introduction: in})
		}
	}
	for name, old := range known {
		if failed == nil && !slices.ContainsFunc(found, func(in dnssd.Introduction) bool { return in.Name == name }) {
			delete(known, name)
			all = append(all, dnssd.Change{Introduction: old, Gone: true})
		}
	}
	return all
}

// introductions returns the introductions of an entry: the URL itself, or the service endpoints of a DID document for Things and
// directories (WoT Discovery §6.5). The error joins the failures.
func (d *Discoveries) introductions(ctx context.Context, where string) (all []dnssd.Introduction, err error) {
	if !strings.HasPrefix(where, "did:") {
		in, err := d.introduction(ctx, where, where, "Thing")
		if err != nil {
			return nil, err
		}
		return []dnssd.Introduction{in}, nil
	}
	doc, err := d.o.Resolver.Services(ctx, did.DID(where)) // without keys, which are not needed here
	if err != nil {
		return nil, err
	}
	var failed []error
	for typ, kind := range map[string]string{web.WotThing: "Thing", web.WotDirectory: "Directory"} {
		for _, address := range web.Endpoints(doc, typ) {
			if len(all)+len(failed) >= endpointsMax {
				return all, errors.Join(append(failed, fmt.Errorf("more than %d services; the rest is omitted", endpointsMax))...)
			}
			if in, err := d.introduction(ctx, where, address, kind); err != nil {
				failed = append(failed, err)
			} else if !slices.ContainsFunc(all, func(o dnssd.Introduction) bool { return o.Name == in.Name }) {
				all = append(all, in) // a directory may be listed as both types with one URL
			}
		}
	}
	return all, errors.Join(failed...)
}

// introduction resolves the host of a TD.
func (d *Discoveries) introduction(ctx context.Context, where, address, kind string) (in dnssd.Introduction, err error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return in, interact.Errorf(interact.Invalid, "https://…", "expected an https URL, got %q", address)
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := d.o.Lookup(ctx, "ip", u.Hostname())
	if err != nil {
		return in, err
	}
	if len(addrs) == 0 {
		return in, fmt.Errorf("%s has no address", u.Hostname())
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	slices.SortFunc(addrs, netip.Addr.Compare) // resolvers rotate addresses
	addrs = addrs[:min(len(addrs), addrsMax)]
	return dnssd.Introduction{Name: where + " " + u.String(), Instance: where, URL: u.String(), Type: kind, Host: u.Hostname(),
		Addrs: addrs, From: addrs[0]}, nil
}

// allow returns the check for the addresses of an introduction.
func (d *Discoveries) allow(configuredHost string) func(dnssd.Introduction, netip.Addr) error {
	if configuredHost == "" {
		return dnssd.Local
	}
	return func(in dnssd.Introduction, addr netip.Addr) error {
		if strings.EqualFold(in.Host, configuredHost) && slices.Contains(in.Addrs, addr) {
			return nil
		}
		return d.o.Public(addr)
	}
}
