package render

import (
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
)

func TestOrganizationLine(t *testing.T) {
	t.Parallel()
	two := []api.Member{{}, {Revoked: time.Now()}, {}}
	for want, o := range map[string]*api.Organization{
		"acme.example · node": {Name: "acme.example", State: api.OrganizationConfirmed, Roles: []string{"node"}, Members: two[:1]},
		"host.local (made by the first run) · unconfirmed · node, a · issuer": {Name: "host.local", Auto: true, State: api.OrganizationUnconfirmed,
			Roles: []string{"node", "a"}, Issuer: true},
		"acme.example · issuer · 2 members, 1 revoked": {Name: "acme.example\n", State: api.OrganizationConfirmed, Issuer: true, Members: two},
	} {
		if got := organizationLine(o); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestPartnersLine(t *testing.T) {
	t.Parallel()
	got := partnersLine([]api.Partner{{Name: "globex", State: api.PartnerActive, Connected: 1}, {Name: "initech", State: api.PartnerSuspended, Connected: 2}})
	if want := "globex (1 node), initech (suspended)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := partnersLine(nil); got != "" {
		t.Errorf("got %q without partners", got)
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	for want, at := range map[string]time.Time{
		"":                              {},
		"2026-11-25T12:00:00Z (in 24h)": now.Add(24 * time.Hour),
		"2026-11-24T11:00:00Z (1h ago)": now.Add(-time.Hour),
		"2026-11-24T12:00:00Z (0s ago)": now,
	} {
		if got := deadline(at, now); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
