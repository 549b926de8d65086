package localnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// parcels are the agents of the story of two organizations: an HTTP server whose actions return the caller.
type parcels struct {
	server *http.Server
	url    string
}

func startParcels() (*parcels, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &parcels{url: "http://" + l.Addr().String()}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{action}", p.act)
	mux.HandleFunc("GET /moved", p.moved)
	p.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = p.server.Serve(l) }() // until close
	return p, nil
}

func (p *parcels) close() error {
	if err := p.server.Close(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// A caller is the output of the actions: what the node of the agent states about the caller.
type caller struct {
	ID    string  `json:"id"`
	Org   did.DID `json:"org"`
	Roles string  `json:"roles"`
	// LentBy is the delegator of the right that the caller uses.
	LentBy string `json:"lentBy"`
}

func (p *parcels) act(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(caller{r.Header.Get("Lmos-Caller"), did.DID(r.Header.Get("Lmos-Caller-Org")), r.Header.Get("Lmos-Caller-Roles"),
		r.Header.Get("Lmos-Caller-Lent-By")})
}

// moved sends an event each 50 ms, until the listener disconnects.
func (p *parcels) moved(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	c := http.NewResponseController(w)
	for id := 1; c.Flush() == nil; id++ {
		select {
		case <-time.After(50 * time.Millisecond):
			fmt.Fprintf(w, "id: %d\nevent: moved\ndata: %d\n\n", id, id)
		case <-r.Context().Done():
			return
		}
	}
}

// describe returns the Thing Description of an agent.
func (p *parcels) describe(title string, v td.Visibility) []byte {
	return fmt.Appendf(nil, `{"@context": ["https://www.w3.org/2022/wot/td/v1.1", {"lmosd": "https://lmosd.dev/ns/lmosd#"}], "title": %q,
"lmosd:visibility": %q, "security": "nosec", "securityDefinitions": {"nosec": {"scheme": "nosec"}}, "base": %q,
"actions": {"track": {"forms": [{"href": "track"}]}, "reroute": {"forms": [{"href": "reroute"}]}},
"events": {"moved": {"data": {"type": "integer"}, "forms": [{"href": "moved", "subprotocol": "sse", "op": "subscribeevent"}]}}}`,
		title, v.String(), p.url+"/")
}
