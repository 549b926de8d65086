// Package td parses, validates, signs and verifies W3C Thing Descriptions and their records.
//
// Three types separate levels of trust. A [Thing] is a parsed and valid TD whose signature is not verified. A [Signed] has bytes from the
// network. Only [Signed.Verify] returns a [Description], and the rest of the program indexes, shows and invokes only descriptions.
//
// A TD passes draft.go and complete.go (defaults and the id), parse.go, check.go and language.go (rules), sign.go, and at the receiver
// verify.go and description.go. record.go encodes the record, grant.go that of a Thing with several hosts; compact.go stores a description in little memory. formrewrite.go replaces the
// forms of a TD by those of a node. query.go, ref.go, versionrange.go, strategy.go and coverage.go select Things: search, references,
// versions of capabilities, and how complete an answer is.
//
// Sources: WoT Thing Description 1.1; LMOS protocol, "Description"; VC Data Integrity.
package td

import (
	"encoding/json"
	"time"

	"github.com/lmosd/lmosd/did"
)

// Limits of a description and its record, in bytes unless stated otherwise.
const (
	MaxTD          = 128 << 10 // a TD's JSON
	MaxRecord      = 8 << 10   // an encoded record
	MaxInline      = 6 << 10   // a compressed TD inside a record
	MaxCapability  = 256       // a capability id
	MaxID          = 1024      // a Thing id
	MaxCaps        = 64        // capabilities of a Thing
	MaxHosts       = 4         // hosts of a record of its owner
	MaxGranted     = 8         // nodes of a grant
	MaxAddrs       = 4         // addresses of a host
	MaxAddr        = 256       // a multiaddr in text form
	MaxTitle       = 200       // code points of a title in a record's summary
	MaxDescription = 400       // code points of a description in a record's summary
)

// Contexts that a TD of lmosd has (TD 1.1 §5.3.1.1; WoT Discovery §6.2; Data Integrity §2.4).
const (
	Context10        = "https://www.w3.org/2019/wot/td/v1"
	Context11        = "https://www.w3.org/2022/wot/td/v1.1"
	ContextDiscovery = "https://www.w3.org/2022/wot/discovery"
	ContextProof     = "https://w3id.org/security/data-integrity/v2"
	ContextLMOS      = "https://eclipse.dev/lmos/protocol/v1"
	NamespaceLMOSD   = "https://lmosd.dev/ns/lmosd#" // of the prefix "lmosd": terms that LMOS does not define
)

// A Thing is a valid TD: its bytes, and a typed view with the defaults of TD 1.1 applied. It is not verified. It is read-only after [Parse].
type Thing struct {
	Raw          []byte // byte for byte as parsed; at most [MaxTD]
	ID           string // empty if the TD is anonymous
	Title        string
	Description  string
	Types        []string // @type, as spelled
	Base         string
	Version      string // version.instance
	Properties   map[string]*Property
	Actions      map[string]*Action
	Events       map[string]*Event
	Forms        []Form
	Security     []string
	SecurityDefs map[string]*SecurityScheme
	Capabilities []Capability
	Metadata     *Metadata // nil without lmos:metadata
	// Visibility states who may receive the description (lmosd:visibility).
	Visibility Visibility
	// MemberOf is the organization of the owner, as the owner claims (lmosd:memberOf); empty: none.
	MemberOf did.DID
	// Concurrency is the maximum number of concurrent interactions (lmosd:concurrency); 0 if the TD does not limit them.
	Concurrency int
	Links       []Link
	// Warnings are tolerated deviations, and features that a known client does not support. Only [Parse] and [Complete] set them: a Thing
	// from the mesh has none.
	Warnings []Issue

	doc   map[string]any // Raw, decoded; nil for a Thing from the mesh
	terms []string       // result of Terms; nil if another package made the Thing
}

// An Affordance has the common members of properties, actions and events.
type Affordance struct {
	Types        []string
	Title        string
	Description  string
	Forms        []Form
	URIVariables map[string]*Schema
}

// A Property is state that can be read, written or observed.
type Property struct {
	Affordance
	*Schema
	ReadOnly, WriteOnly, Observable bool
}

// An Action is a function of a Thing. Synchronous is nil if the TD does not set it.
type Action struct {
	Affordance
	Input, Output    *Schema // nil: none
	Safe, Idempotent bool
	Synchronous      *bool
}

// An Event is a notification of a Thing.
type Event struct {
	Affordance
	Subscription, Data, DataResponse, Cancellation *Schema
}

// A Form describes how to perform an operation. Href is absolute where the TD has a base or an absolute href.
type Form struct {
	Href            string
	ContentType     string // default application/json
	ContentCoding   string
	Subprotocol     string
	Ops             []string // without any, the defaults of TD 1.1 §5.4
	Security        []string // the form's own, else the Thing's
	Scopes          []string
	ResponseType    string // response.contentType, else ContentType
	HTTPMethod      string // htv:methodName, else ""
	HTTPHeaders     []HTTPHeader
	AdditionalTypes []string        // contentType of additionalResponses
	Raw             json.RawMessage // the whole form, for the terms of other bindings
}

// An HTTPHeader is one entry of htv:headers.
type HTTPHeader struct{ Name, Value string }

// A SecurityScheme is one entry of securityDefinitions (TD 1.1 §5.3.3), defaults applied.
type SecurityScheme struct {
	Scheme string // nosec, basic, digest, apikey, bearer, psk, oauth2, combo, auto, or an extension with a colon
	In     string
	Name   string
	OneOf  []string
	AllOf  []string
	Raw    json.RawMessage
}

// A Capability is one entry of lmos:capabilities.
type Capability struct {
	ID, Name, Version, Description string
	Examples                       []string
}

// Metadata is lmos:metadata; names are read with and without the prefix.
type Metadata struct {
	VendorName, VendorURL    string
	ModelName, ModelProvider string
	Languages, Modes         []string
	Raw                      json.RawMessage
}

// A Link is one entry of links.
type Link struct{ Href, Rel, Type string }

// Kind is the kind of a record.
type Kind uint8

// Kinds of records.
const (
	KindTD        Kind = 0 // the Thing is described by the TD of Hash
	KindTombstone Kind = 1 // the Thing is withdrawn
	KindMoved     Kind = 2 // Successor is the new owner of the Thing
)

// A HostState is the state of a Thing at one of several hosts.
type HostState uint8

// States of a host.
const (
	Hosting  HostState = 0
	Draining HostState = 1 // it accepts no new calls
	Ended    HostState = 2 // it does not host the Thing any longer
)

// A Host is a node that hosts a Thing.
type Host struct {
	Node  did.DID  // a did:key; the node's PeerID is the same key
	Addrs []string // multiaddrs without /p2p
}

// A Record is the small signed statement about a TD that the DHT, gossip and streams carry. Times are UTC in whole seconds.
type Record struct {
	Owner        did.DID
	Thing        string // Thing id
	Seq          uint64
	Issued       time.Time
	Expires      time.Time
	Kind         Kind
	Hash         [32]byte // SHA-256 of the TD's bytes; zero in a tombstone
	Size         int      // of the TD in bytes
	Hosts        []Host
	Capabilities []string // normalized ids; see Terms
	Title        string
	Summary      string
	Successor    did.DID // only KindMoved
	Audience     Visibility
	// Host is the node that signed the record, if that is not the owner; see grant.go. Then Hosts has this node only, and Seq is its own.
	Host   did.DID
	Grant  *Grant    // what permits it to host the Thing
	State  HostState // of Host
	Inline []byte    // zstd of the TD, or nil; bound by Hash, not by the signature
	Raw    []byte    // the encoded record

	digest [32]byte // SHA-256 of the signed bytes
	tail   int      // bytes after the signature in the encoded record
}

// A Signed is a record and, if present, its TD. The bytes are not verified.
type Signed struct {
	Record []byte // encoded record
	TD     []byte // JSON, or nil if it must be fetched by hash or is inside the record
	// From is the node that sent it, proven by the connection; empty if unknown.
	From did.DID
}

// A Description is a Thing whose record and proof were verified. It is the only form that may be indexed, shown or invoked. It is read-only.
type Description struct {
	*Thing
	Record *Record
	Signed *Signed // the verified bytes; TD is nil only if Thing is
	// ProofMethod is the DID URL of the key that signed the TD; ProofCreated its time.
	ProofMethod  string
	ProofCreated time.Time
	// ProofExpires is the expiry of the proof, independent of the record; zero means never.
	ProofExpires time.Time
}
