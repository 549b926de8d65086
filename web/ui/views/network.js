// The view Network: how others reach the node, what relays do for it and it for others, hole punches, and the connected nodes.
import { html, useState } from '../vendor/preact.js';
import { Ago, Badge, Card, Copy, Dot, Facts, Failure, Field, Heading, Resource, State, Table, announce, tableName, wordOf } from '../ui.js';
import { may, useResource } from '../state.js';
import { send } from '../api.js';
import { href } from '../router.js';
import { bytes, clean, dur, ms, num, percent, plural, shortDID, t } from '../words.js';

const reach = {
  public: ['good', 'Public', 'Other nodes reach this one directly at an address that is proven to work.'],
  local: ['info', 'Local', 'Other nodes reach this one at private addresses. This network has no others.'],
  private: ['warn', 'Private', 'Other nodes reach this one through relays only.'],
  unknown: ['', 'Unknown', 'No other network is in sight, so nothing was proven yet.'],
};
const nats = {
  none: 'None: an interface has the address that peers see',
  'endpoint-independent': 'Endpoint-independent: direct connections can be punched',
  'address-dependent': 'Address-dependent: most connections stay relayed',
  unknown: 'Unknown: too few peers have seen this node',
};
const mappings = { off: 'Off', none: 'No router has answered', mapped: 'The router has mapped a port' };
const sources = { interface: 'Interface', mapping: 'Port mapping', configured: 'Configuration', observed: 'Seen by peers' };
const proofs = { interface: 'Interface', mapping: 'Port mapping', configured: 'Configuration', inbound: 'Inbound connection' };
const results = { won: ['good', 'punched'], direct: ['good', 'direct'], failed: ['bad', 'failed'] };

export default function Network() {
  const net = useResource('v1/net', { on: ['relay', 'peer'], pace: 2000, every: 10_000 });
  const peers = useResource('v1/peers', { on: 'peer', pace: 1000, every: 10_000 });
  return html`<${Heading} title=${t('Network')} />
    <${Resource} of=${net} rights="read" testid="net">${(n) => html`
      <div class="columns wide"><${Reachability} net=${n} /><${Punches} punches=${n.punches} /></div>
      <${Addresses} addrs=${n.addrs ?? []} />
      <div class="columns wide"><${Relays} net=${n} /><${Serving} serving=${n.serving} /></div>`}</${Resource}>
    <${Peers} peers=${peers} />`;
}

function Reachability({ net }) {
  const [tone, name, text] = reach[net.reachability] ?? reach.unknown;
  const p = net.port_mapping ?? {};
  return html`<${Card} title=${t('Reachability')} testid="net-reachability">
    <p class="net-big"><${Badge} tone=${tone} testid="reachability">${t(name)}</${Badge}></p><p class="muted">${t(text)}</p>
    <${Facts} items=${[
      [t('Since'), html`<${Ago} value=${net.since} />`],
      [t('NAT, UDP'), wordOf(nats, net.nat?.udp)],
      [t('NAT, TCP'), wordOf(nats, net.nat?.tcp)],
      [t('Port mapping'), wordOf(mappings, p.state)],
      ...(p.mappings ?? []).map((m) => [t('Mapped port'), html`<code>${clean(m.external, 120)}</code> → <code>${clean(m.local, 120)}</code>`]),
      [t('Connections'), t('{total}: {direct} direct, {relayed} relayed', { total: num(net.peers?.total), direct: num(net.peers?.direct), relayed: num(net.peers?.relayed) })],
    ]} />
  </${Card}>`;
}

function Counts({ items }) {
  return html`<dl class="net-counts">${items.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function Punches({ punches }) {
  const p = punches ?? {};
  const last = p.last ?? [];
  return html`<${Card} title=${t('Hole punches')} sub=${t('direct connections in place of relayed ones')} testid="net-punches">
    <${Counts} items=${[[t('tried'), num(p.tried)], [t('punched'), num(p.won)], [t('failed'), num(p.failed)], [t('direct'), num(p.direct)], ...(p.tried > 0 ? [[t('success'), percent(p.won / p.tried)]] : [])]} />
    ${last.length === 0
      ? html`<p class="muted" data-status="empty">${t('No relayed connection needed one yet.')}</p>`
      : html`<${Table} caption=${tableName(t('Last hole punches'))} rows=${last} rowKey=${(r) => `${r.did} ${r.at}`} columns=${[
        { id: 'did', title: t('Node'), cell: (r) => html`<${Peer} did=${r.did} />`, wide: true },
        { id: 'result', title: t('Result'), value: (r) => r.result, cell: (r) => html`<${Badge} tone=${results[r.result]?.[0]}>${results[r.result] ? t(results[r.result][1]) : clean(r.result, 20)}</${Badge}>${r.reason && html` <span class="muted">${clean(r.reason, 200)}</span>`}` },
        { id: 'took', title: t('Took'), value: (r) => r.took_ms, cell: (r) => (r.took_ms ? ms(r.took_ms) : '–'), end: true },
        { id: 'at', title: t('When'), value: (r) => Date.parse(r.at), cell: (r) => html`<${Ago} value=${r.at} />` },
      ]} />`}
  </${Card}>`;
}

function Addresses({ addrs }) {
  return html`<${Card} title=${t('Addresses')} sub=${plural(addrs.length, 'address')} flush testid="net-addresses">
    ${addrs.length === 0
      ? html`<${State} status="empty" title=${t('This node listens on no address.')} commands=${['lmosd config get listen.addrs']} />`
      : html`<${Table} caption=${tableName(t('Addresses'))} rows=${addrs} rowKey=${(a) => a.addr} columns=${[
        { id: 'addr', title: t('Address'), value: (a) => a.addr, cell: (a) => html`<span class="id"><code>${clean(a.addr, 200)}</code><${Copy} text=${a.addr} /></span>`, wide: true },
        { id: 'usable', title: t('Usable'), value: (a) => (a.usable ? 0 : 1), cell: (a) => (a.usable ? html`<span class="nowrap"><${Dot} tone="good" /> ${t('yes')}</span>` : html`<span class="nowrap"><${Dot} /> ${t('not proven')}</span>`) },
        { id: 'source', title: t('Source'), value: (a) => a.source, cell: (a) => wordOf(sources, a.source), hide: true },
        { id: 'proof', title: t('Proof'), value: (a) => a.proof, cell: (a) => (a.proof ? wordOf(proofs, a.proof) : '–'), hide: true },
        { id: 'checked', title: t('Checked by peers'), value: (a) => a.checked, cell: (a) => (a.checked ? html`<${Badge} tone=${a.checked === 'reachable' ? 'good' : 'bad'}>${t(a.checked === 'reachable' ? 'reachable' : 'not reachable')}</${Badge}>` : '–'), hide: true },
        { id: 'announced', title: t('Announced'), value: (a) => (a.announced ? 0 : 1), cell: (a) => t(a.announced ? 'yes' : 'no'), hide: true },
      ]} />`}
  </${Card}>`;
}

function Relays({ net }) {
  const relays = net.relays ?? [], failures = net.relay_failures ?? [];
  return html`<${Card} title=${t('Relays used')} sub=${plural(relays.length, 'reservation')} flush testid="net-relays">
    ${relays.length === 0 && html`<${State} status="empty" title=${t('This node uses no relay.')}><p>${net.reachability === 'private' ? t('Nodes in other networks cannot reach it until a relay accepts it.') : t('It needs none while others reach it directly.')}</p></${State}>`}
    ${relays.length > 0 && html`<${Table} caption=${tableName(t('Relays used'))} rows=${relays} rowKey=${(r) => r.did + r.addr} columns=${[
      { id: 'did', title: t('Relay'), value: (r) => r.did, cell: (r) => html`<${Peer} did=${r.did} />`, wide: true },
      { id: 'rtt', title: t('Delay'), value: (r) => r.rtt_ms || undefined, cell: (r) => (r.rtt_ms > 0 ? ms(r.rtt_ms) : '–'), end: true },
      { id: 'until', title: t('Ends'), value: (r) => Date.parse(r.until), cell: (r) => html`<${Ago} value=${r.until} />` },
      { id: 'limit', title: t('Limit of a connection'), cell: (r) => [r.max_s > 0 && dur(r.max_s), r.max_bytes > 0 && bytes(r.max_bytes)].filter(Boolean).join(', ') || t('no limit'), hide: true },
    ]} />`}
    ${failures.length > 0 && html`<${Table} caption=${tableName(t('Relays that did not serve this node'))} rows=${failures} rowKey=${(f) => f.did + f.at} columns=${[
      { id: 'did', title: t('Refused by'), cell: (f) => html`<${Peer} did=${f.did} />` },
      { id: 'reason', title: t('Reason'), cell: (f) => clean(f.reason, 200), wide: true },
      { id: 'at', title: t('When'), value: (f) => Date.parse(f.at), cell: (f) => html`<${Ago} value=${f.at} />` },
    ]} />`}
  </${Card}>`;
}

function Serving({ serving }) {
  if (!serving) {
    return html`<${Card} title=${t('Relaying for others')} testid="net-serving"><${State} status="empty" title=${t('This node relays nothing.')}><p>${t('A node with a public address may relay for others.')}</p></${State}></${Card}>`;
  }
  const circuits = serving.circuits ?? [], reservations = serving.reservations ?? [], refused = Object.entries(serving.refused ?? {});
  return html`<${Card} title=${t('Relaying for others')} testid="net-serving">
    <${Counts} items=${[[t('reservations'), num(reservations.length)], [t('connections'), num(circuits.length)], [t('since the start'), bytes(serving.bytes)],
      [t('today'), serving.limit_today > 0 ? t('{used} of {limit}', { used: bytes(serving.bytes_today), limit: bytes(serving.limit_today) }) : bytes(serving.bytes_today)]]} />
    ${refused.length > 0 && html`<p class="muted">${t('Refused')}: ${refused.map(([why, n]) => `${clean(why, 40)} ${num(n)}`).join(', ')}</p>`}
    ${circuits.length > 0 && html`<${Table} caption=${tableName(t('Relayed connections'))} rows=${circuits} rowKey=${(c) => c.from + c.to + c.since} limit=${50} columns=${[
      { id: 'from', title: t('From'), cell: (c) => html`<${Peer} did=${c.from} />` },
      { id: 'to', title: t('To'), cell: (c) => html`<${Peer} did=${c.to} />` },
      { id: 'bytes', title: t('Bytes'), value: (c) => c.bytes, cell: (c) => bytes(c.bytes), end: true },
      { id: 'since', title: t('Since'), value: (c) => Date.parse(c.since), cell: (c) => html`<${Ago} value=${c.since} />` },
    ]} />`}
    ${circuits.length === 0 && reservations.length > 0 && html`<ul class="mesh-list">${reservations.slice(0, 50).map((r) => html`<li key=${r.did}><${Peer} did=${r.did} /> <span class="muted">${clean(r.terms, 20)}</span></li>`)}</ul>`}
  </${Card}>`;
}

/** Peer is a node by its DID, with a link to it in the mesh. */
function Peer({ did }) {
  return html`<a class="nowrap" href=${href('mesh', '', { scope: 'mine', node: did })} title=${clean(did, 200)}><code>${shortDID(did)}</code></a>`;
}

function Peers({ peers }) {
  return html`<${Card} title=${t('Connected nodes')} sub=${peers.data ? plural((peers.data.items ?? []).length, 'node') : ''} flush testid="net-peers">
    <${Resource} of=${peers} rights="read" empty=${(d) => (d.items ?? []).length === 0 && html`<${State} status="empty" title=${t('This node is connected to no other node.')} commands=${['lmosd peers connect MULTIADDR']} />`}>${(d) => html`<${Table}
      caption=${tableName(t('Connected nodes'))} rows=${d.items} rowKey=${(p) => p.did + p.addr} sort="rtt" limit=${500} testid="peers" columns=${[
        { id: 'did', title: t('Node'), value: (p) => p.did, cell: (p) => html`<${Peer} did=${p.did} />`, wide: true },
        { id: 'rtt', title: t('Delay'), value: (p) => p.rtt_ms || undefined, cell: (p) => (p.rtt_ms > 0 ? ms(p.rtt_ms) : '–'), end: true },
        { id: 'transport', title: t('Transport'), value: (p) => p.transport, cell: (p) => html`<span class="nowrap">${clean(p.transport, 30)}</span>` },
        { id: 'relay', title: t('Path'), value: (p) => p.relay ?? '', cell: (p) => (p.relay ? html`<${Badge} tone="warn">${t('relayed')}</${Badge}>` : t('direct')) },
        { id: 'direction', title: t('Direction'), value: (p) => p.direction, cell: (p) => t(p.direction === 'inbound' ? 'inbound' : 'outbound'), hide: true },
        { id: 'age', title: t('Connected for'), value: (p) => p.age_s, cell: (p) => dur(p.age_s), end: true, hide: true },
        { id: 'addr', title: t('Address'), value: (p) => p.addr, cell: (p) => html`<code class="nowrap">${clean(p.addr, 200)}</code>`, hide: true },
        { id: 'agent', title: t('Program'), value: (p) => p.agent, cell: (p) => clean(p.agent, 60), hide: true },
      ]} />`}</${Resource}>
    ${may('admin') && html`<${Connect} onDone=${peers.reload} />`}
  </${Card}>`;
}

/** Connect connects the node to an address. */
function Connect({ onDone }) {
  const [addr, setAddr] = useState('');
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    if (!addr.trim() || busy) return;
    setBusy(true);
    setError(null);
    try {
      await send('POST', 'v1/peers', { addr: addr.trim() });
      setAddr('');
      announce(t('Connected'));
      onDone();
    } catch (err) {
      setError(err);
    }
    setBusy(false);
  };
  return html`<form class="net-connect" onSubmit=${submit} data-testid="net-connect">
    <${Field} label=${t('Connect to an address')}>${({ id }) => html`<input id=${id} value=${addr} onInput=${(e) => setAddr(e.currentTarget.value)} placeholder="/ip4/192.0.2.7/tcp/4667/p2p/12D3KooW…" autocomplete="off" spellcheck=${false} />`}</${Field}>
    <button class="button" disabled=${busy || !addr.trim()}>${t('Connect')}</button>
    ${error && html`<${Failure} error=${error} />`}
  </form>`;
}
