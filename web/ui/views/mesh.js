// The view Mesh: a picture of the nodes and their connections, its table, and the chosen node.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from '../vendor/preact.js';
import { Ago, Badge, Button, Card, Dot, Facts, Heading, ID, Resource, SearchField, Segments, State, Table, announce, reachOf, scheme, tableName, wordOf } from '../ui.js';
import { on, useResource } from '../state.js';
import { Graph, legendShape } from '../graph.js';
import { go, href } from '../router.js';
import { clean, ms, num, plural, shortDID, t } from '../words.js';

// The node asks its organization at most once in 10 s, so asking more often brings nothing.
const EVERY = 10_000;
const LIMIT = 2000;
const ROWS = 100;

const scopes = { mine: 'Mine', organization: 'Organization', mesh: 'All' };
const relations = { own: 'Own organization', partner: 'Partner', '': 'Not verified' };
const sources = { self: 'This node', connection: 'A connection of this node', report: 'Reported by a member', record: 'Named by a record' };

/** nameOf returns what a node is called: its name, or its DID in short. */
function nameOf(node) {
  return clean(node?.name, 60) || shortDID(node?.did);
}

/** relationsOf maps the organizations of a topology to own or partner. */
function relationsOf(topology, partners) {
  const map = new Map();
  const known = new Set();
  for (const p of partners) {
    if (p.state !== 'partner') continue;
    known.add(p.name).add(p.did).add(String(p.did).split(':').slice(3).join(':'));
  }
  for (const n of topology.nodes ?? []) if (n.organization && known.has(n.organization)) map.set(n.organization, 'partner');
  const own = (topology.nodes ?? []).find((n) => n.self)?.organization;
  if (own) map.set(own, 'own');
  return map;
}

// tidy cuts what other nodes say of themselves, and drops what is no node.
function tidy(topology) {
  const nodes = (topology.nodes ?? []).filter((n) => typeof n?.did === 'string')
    .map((n) => ({ ...n, name: clean(n.name, 60), organization: clean(n.organization, 120), roles: (n.roles ?? []).slice(0, 16).map((r) => clean(r, 40)) }));
  return { ...topology, nodes, links: (topology.links ?? []).filter((l) => typeof l?.from === 'string' && typeof l?.to === 'string') };
}

/** patched applies events to a topology that are newer than it: peers that came and went. The next answer of the node has them all. */
function patched(topology, events) {
  const self = topology.nodes?.find((n) => n.self);
  if (!self || events.length === 0) return topology;
  let { nodes, links } = topology;
  for (const e of events) {
    const mine = (l) => (l.from === self.did && l.to === e.did) || (l.to === self.did && l.from === e.did);
    if (e.kind === 'peer.connected') {
      if (!nodes.some((n) => n.did === e.did)) nodes = [...nodes, { did: e.did, name: e.name, reachable: true, source: 'connection' }];
      else nodes = nodes.map((n) => (n.did === e.did && !n.reachable ? { ...n, reachable: true } : n));
      if (!links.some(mine)) links = [...links, { from: self.did, to: e.did }];
    } else if (links.some(mine)) {
      links = links.filter((l) => !mine(l));
    }
  }
  return { ...topology, nodes, links };
}

// usePatched keeps the events since the last answer.
function usePatched(topology) {
  const [events, setEvents] = useState([]);
  useEffect(() => setEvents((list) => (list.length ? [] : list)), [topology]);
  useEffect(() => on('peer', (e) => e.did && setEvents((list) => [...list.slice(-99), { kind: e.kind, did: e.did, name: e.name ?? '' }])), []);
  return useMemo(() => (topology ? patched(topology, events) : null), [topology, events]);
}

// useNarrow is true on a phone, where the table comes first.
function useNarrow() {
  const query = useMemo(() => matchMedia('(max-width: 719px)'), []);
  const [narrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const change = () => setNarrow(query.matches);
    query.addEventListener('change', change);
    return () => query.removeEventListener('change', change);
  }, []);
  return narrow;
}

export default function Mesh({ route }) {
  const scope = Object.hasOwn(scopes, route.query.get('scope') ?? '') ? route.query.get('scope') : 'mesh';
  const chosen = route.query.get('node') ?? '';
  const topology = useResource('v1/topology', { params: { scope, limit: LIMIT }, on: ['peer', 'trust'], pace: EVERY, every: EVERY });
  const partners = useResource('v1/trust/partners', { on: 'trust', pace: 5000 });
  const calls = useResource('v1/calls', { params: { limit: 20 }, on: 'call', pace: 2000, rights: 'admin' });
  const data = useMemo(() => (topology.data ? tidy(topology.data) : null), [topology.data]);
  const shown = usePatched(data);
  const trust = useMemo(() => (shown ? relationsOf(shown, partners.data?.items ?? []) : new Map()), [shown, partners.data]);
  const narrow = useNarrow();
  const address = (change) => href('mesh', '', { scope: scope === 'mesh' ? '' : scope, node: chosen, ...change });
  const choose = (did) => go(address({ node: did }), { replace: true });
  const node = shown?.nodes.find((n) => n.did === chosen) ?? null;
  // Calls of agents of this node have no path.
  const call = calls.data?.items?.find((c) => c.path?.length > 1);
  const path = call?.path ?? none;

  const view = () => {
    const picture = html`<${Picture} key="picture" topology=${shown} trust=${trust} path=${path} call=${call} chosen=${chosen} onChoose=${choose} node=${node} />`;
    const tables = html`<${Tables} key="tables" topology=${shown} trust=${trust} chosen=${chosen} onChoose=${choose} />`;
    return html`<${Coverage} topology=${shown} />${narrow ? [tables, picture] : [picture, tables]}`;
  };
  return html`<${Heading} title=${t('Mesh')}>
      <${Segments} label=${t('Nodes of')} value=${scope} options=${Object.entries(scopes).map(([id, text]) => [id, t(text)])} testid="mesh-scope"
        onChange=${(next) => go(address({ scope: next === 'mesh' ? '' : next }), { replace: true })} />
    </${Heading}>
    <${Resource} of=${{ ...topology, data: topology.data && shown }} rights="read" testid="mesh" empty=${(d) => d.nodes.length < 2 && html`<${Alone} scope=${scope} />`}>${view}</${Resource}>`;
}

const none = [];

function Alone({ scope }) {
  return html`<${State} status="empty" title=${t(scope === 'mine' ? 'This node is connected to no other node.' : 'This node knows no other node of this kind.')}
    commands=${['lmosd peers connect MULTIADDR', 'lmosd org invite']}><p>${t('Nodes of one local network find each other. Others are connected by address or by an invitation.')}</p></${State}>`;
}

/** Coverage says how much of the mesh the picture shows. */
function Coverage({ topology }) {
  const c = topology.coverage ?? {};
  const partial = (c.unreachable ?? 0) > 0 || c.truncated || (c.answered ?? 0) < (c.asked ?? 0);
  return html`<div class="row mesh-coverage" data-testid="coverage" data-status=${partial ? 'partial' : 'ready'}>
    <span>${plural(topology.nodes.length, 'node')}, ${plural(topology.links.length, 'connection')}</span>
    <span class="muted">${c.asked ? t('{answered} of {asked} answered', { answered: num(c.answered ?? 0), asked: plural(c.asked, 'node') }) : t('Own connections and records only')}</span>
    ${(c.unreachable ?? 0) > 0 && html`<${Badge} tone="warn">${t('{n} not reachable', { n: num(c.unreachable) })}</${Badge}>`}
    ${c.truncated && html`<${Badge} tone="warn">${t('Cut at {n}', { n: plural(LIMIT, 'node') })}</${Badge}>`}
  </div>`;
}

// ---- The picture ----

function Picture({ topology, trust, path, call, chosen, onChoose, node }) {
  const canvas = useRef(null);
  const graph = useRef(null);
  const panel = useRef(null);
  const now = useRef({ onChoose, chosen });
  now.current = { onChoose, chosen };
  const [bubble, setBubble] = useState(null);
  const [open, setOpen] = useState(0);
  const [tones, setTones] = useState([]);
  useLayoutEffect(() => {
    const g = new Graph(canvas.current, {
      onChoose: (mark) => {
        setBubble(mark && mark.kind !== 'node' ? mark : null);
        setOpen(g.open.size);
        const did = mark?.node?.did ?? '';
        if (did !== now.current.chosen) now.current.onChoose(did);
        if (mark) announce(sayMark(mark, g));
      },
      onOpen: () => panel.current?.focus(),
    });
    graph.current = g;
    return () => {
      graph.current = null;
      g.destroy();
    };
  }, []);
  useEffect(() => {
    if (!graph.current?.update(topology, { trust })) return;
    setOpen(graph.current.open.size);
    const seen = new Map();
    for (const m of graph.current.picture.marks) seen.set(m.organization, m.tone);
    setTones([...seen].sort((a, b) => a[1] - b[1]).slice(0, 12));
  }, [topology, trust]);
  useEffect(() => graph.current?.showPath(path), [path]);
  useEffect(() => {
    const g = graph.current;
    // Without a chosen node, a chosen bubble stays.
    if (g && (chosen || g.picture.byKey.get(g.chosen ?? '')?.kind === 'node')) g.choose(chosen || null);
  }, [chosen, topology]);
  const close = () => {
    for (const name of [...(graph.current?.open ?? [])]) graph.current?.expand(name, false);
    setOpen(0);
  };
  return html`<div class="mesh-main">
    <${Card} title=${t('Picture')} flush testid="mesh-picture" actions=${html`
      ${open > 0 && html`<${Button} kind="quiet" onClick=${close}>${t('Close organizations')}</${Button}>`}
      <${Button} kind="quiet" label=${t('Closer')} onClick=${() => graph.current?.zoom(1.3)}>+</${Button}>
      <${Button} kind="quiet" label=${t('Farther')} onClick=${() => graph.current?.zoom(1 / 1.3)}>−</${Button}>
      <${Button} kind="quiet" onClick=${() => graph.current?.fit()}>${t('Show all')}</${Button}>`}>
      <div class="mesh-picture"><canvas ref=${canvas} tabindex="0" role="application" data-testid="mesh-canvas"
        aria-label=${t('Picture of the mesh. Arrow keys choose a node, Enter opens it, Escape ends the choice. The tables have the same.')}></canvas></div>
      <${Legend} tones=${tones} path=${path} call=${call} />
    </${Card}>
    <${Chosen} topology=${topology} trust=${trust} node=${node} bubble=${bubble} did=${chosen} onChoose=${onChoose} focus=${panel} />
  </div>`;
}

function sayMark(mark, g) {
  const links = plural(g.picture.near.get(mark.key)?.size ?? 0, 'connection');
  if (mark.kind !== 'node') return `${clean(mark.organization, 60) || t('No organization')}, ${plural(mark.count, 'node')}, ${links}`;
  return [clean(mark.label, 60), clean(mark.organization, 60), mark.reachable ? '' : t('not reachable'), links].filter(Boolean).join(', ');
}

/** Shape is the mark of an organization in the picture. */
function Shape({ tone }) {
  const ref = useRef(null);
  const theme = scheme.value;
  useLayoutEffect(() => legendShape(ref.current, tone), [tone, theme]);
  return html`<canvas class="mesh-shape" ref=${ref} aria-hidden="true"></canvas>`;
}

function Legend({ tones, path, call }) {
  return html`<ul class="mesh-legend" aria-label=${t('Legend')}>
    ${tones.map(([name, tone]) => html`<li key=${name}><${Shape} tone=${tone} />${clean(name, 40) || t('No organization')}</li>`)}
    <li><${Key} d="M8 1.5a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13" />${t('Own organization')}</li>
    <li><${Key} d="M8 1a7 7 0 1 1 0 14A7 7 0 0 1 8 1M8 4a4 4 0 1 1 0 8 4 4 0 0 1 0-8" />${t('Partner')}</li>
    <li><${Key} d="M0 8h4M6.5 8h4M13 8h3" />${t('Relayed')}</li>
    <li><${Key} d="M8 4a4 4 0 1 1 0 8 4 4 0 0 1 0-8" wide />${t('Hollow: not reachable')}</li>
    ${path.length > 1 && html`<li class="mesh-path"><${Key} d="M0 8h16" wide />${t('Path of the last call: {name}', { name: clean([call?.name, call?.action].filter(Boolean).join('.') || call?.thing, 60) })}</li>`}
  </ul>`;
}

function Key({ d, wide }) {
  return html`<svg width="16" height="16" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width=${wide ? 2.5 : 1.4} aria-hidden="true" focusable="false"><path d=${d} /></svg>`;
}

// ---- The chosen node ----

function Chosen({ topology, trust, node, bubble, did, onChoose, focus }) {
  if (!node) {
    const text = bubble
      ? t('{name}: {count}. A click opens it.', { name: clean(bubble.organization, 60) || t('No organization'), count: plural(bubble.count, 'node') })
      : did ? t('The chosen node is not in this list any more.') : t('Choose a node in the picture or in the table.');
    return html`<section class="card mesh-side" aria-labelledby="mesh-side" data-testid="mesh-node" data-status="empty"><h2 id="mesh-side" tabindex="-1" ref=${focus}>${t('Node')}</h2><p class="muted">${text}</p></section>`;
  }
  const links = topology.links.filter((l) => l.from === node.did || l.to === node.did);
  const byDID = new Map(topology.nodes.map((n) => [n.did, n]));
  const relation = trust.get(node.organization ?? '') ?? '';
  return html`<section class="card mesh-side" aria-labelledby="mesh-side" data-testid="mesh-node" data-status="ready">
    <div class="card-head"><h2 id="mesh-side" tabindex="-1" ref=${focus}>${nameOf(node)}</h2><div class="actions"><${Button} kind="quiet" icon="close" label=${t('End the choice')} onClick=${() => onChoose('')} /></div></div>
    <${Facts} items=${[
      [t('DID'), html`<${ID} value=${node.did} />`],
      [t('State'), html`<${Reachable} node=${node} />`],
      [t('Organization'), node.organization ? html`${clean(node.organization, 80)} <${Relation} relation=${relation} />` : t('No organization')],
      [t('Roles'), node.roles?.length > 0 && node.roles.map((r) => html`<${Badge} key=${r}>${clean(r, 40)}</${Badge}> `)],
      [t('Version'), clean(node.version, 60)],
      [t('Agents'), node.agents === undefined ? '' : num(node.agents)],
      [t('Known by'), wordOf(sources, node.source)],
      [t('Seen'), !node.self && node.seen && html`<${Ago} value=${node.seen} />`],
    ]} />
    <h3>${plural(links.length, 'connection')}</h3>
    ${links.length > 0 && html`<ul class="mesh-list">${links.slice(0, 50).map((l) => {
      const other = l.from === node.did ? l.to : l.from;
      return html`<li key=${`${l.from} ${l.to} ${l.seen_by ?? ''}`}><button type="button" class="link" onClick=${() => onChoose(other)}>${nameOf(byDID.get(other) ?? { did: other })}</button>
        <span class="muted">${[clean(l.transport, 20), l.relay && t('relayed'), l.rtt_ms > 0 && ms(l.rtt_ms)].filter(Boolean).join(' · ')}</span></li>`;
    })}${links.length > 50 && html`<li class="muted">${t('and {n} more in the table', { n: num(links.length - 50) })}</li>`}</ul>`}
    <h3>${t('Agents here')}</h3>
    <${AgentsOf} key=${node.did} did=${node.did} />
  </section>`;
}

function AgentsOf({ did }) {
  const found = useResource('v1/find', { params: { host: did, limit: 20, timeout: '1s' }, on: 'agent', pace: 3000 });
  return html`<${Resource} of=${found} rights="read" testid="mesh-agents" empty=${(d) => (d.items ?? []).length === 0 && html`<p class="muted" data-status="empty">${t('This node shows no agents to this one.')}</p>`}>${(d) => html`<ul class="mesh-list">${d.items.map((a) => html`<li key=${a.ref}>
      <a href=${href('agents', a.ref)}>${clean(a.title || a.name, 80) || clean(a.ref, 80)}</a> ${a.state && a.state !== 'reachable' && html`<span class="muted">${reachOf(a.state)[1]}</span>`}</li>`)}
    ${d.total > d.items.length && html`<li class="muted">${t('{n} in all', { n: num(d.total) })}</li>`}</ul>`}</${Resource}>`;
}

function Reachable({ node }) {
  if (node.self) return html`<${Dot} tone="accent" /> ${t('This node')}`;
  return node.reachable ? html`<${Dot} tone="good" /> ${t('reachable')}` : html`<${Dot} tone="bad" /> ${t('not reachable')}`;
}

function Relation({ relation }) {
  return html`<${Badge} tone=${{ own: 'good', partner: 'info' }[relation] ?? ''}>${t(relations[relation] ?? relations[''])}</${Badge}>`;
}

// ---- The tables ----

function Tables({ topology, trust, chosen, onChoose }) {
  const [what, setWhat] = useState('nodes');
  const [filter, setFilter] = useState('');
  const [rows, setRows] = useState(ROWS);
  useEffect(() => setRows(ROWS), [what, filter]);
  const byDID = useMemo(() => new Map(topology.nodes.map((n) => [n.did, n])), [topology]);
  const degree = useMemo(() => {
    const count = new Map();
    for (const l of topology.links) for (const did of [l.from, l.to]) count.set(did, (count.get(did) ?? 0) + 1);
    return count;
  }, [topology]);
  const name = (did) => nameOf(byDID.get(did) ?? { did });
  const has = (...texts) => filter === '' || texts.some((s) => (s ?? '').toLowerCase().includes(filter.toLowerCase()));
  const pick = (did) => html`<button type="button" class="link" aria-pressed=${did === chosen ? 'true' : 'false'} onClick=${() => onChoose(did === chosen ? '' : did)}>${name(did)}</button>`;
  const nodes = {
    rows: topology.nodes.filter((n) => has(n.name, n.did, n.organization, n.version, (n.roles ?? []).join(' '))),
    key: (n) => n.did,
    columns: [
      { id: 'name', title: t('Node'), value: (n) => (n.self ? '!' : nameOf(n)), cell: (n) => pick(n.did), wide: true },
      { id: 'state', title: t('State'), value: (n) => (n.self ? 0 : n.reachable ? 1 : 2), cell: (n) => html`<span class="nowrap"><${Reachable} node=${n} /></span>` },
      { id: 'organization', title: t('Organization'), value: (n) => n.organization, cell: (n) => html`<span class="break">${clean(n.organization, 60) || '–'}</span>` },
      { id: 'trust', title: t('Relation'), value: (n) => trust.get(n.organization ?? '') ?? '', cell: (n) => html`<${Relation} relation=${trust.get(n.organization ?? '') ?? ''} />`, hide: true },
      { id: 'roles', title: t('Roles'), value: (n) => (n.roles ?? []).join(' '), cell: (n) => clean((n.roles ?? []).join(', '), 80) || '–', hide: true },
      { id: 'version', title: t('Version'), value: (n) => n.version, cell: (n) => clean(n.version, 40) || '–', hide: true },
      { id: 'agents', title: t('Agents'), value: (n) => n.agents ?? 0, cell: (n) => num(n.agents), end: true, hide: true },
      { id: 'links', title: t('Connections'), value: (n) => degree.get(n.did) ?? 0, cell: (n) => num(degree.get(n.did) ?? 0), end: true, hide: true },
      { id: 'did', title: t('DID'), value: (n) => n.did, cell: (n) => html`<${ID} value=${n.did} />`, hide: true },
    ],
  };
  const links = {
    rows: topology.links.filter((l) => has(name(l.from), name(l.to), l.transport, l.from, l.to)),
    key: (l) => `${l.from} ${l.to} ${l.transport ?? ''} ${l.relay ?? ''} ${l.seen_by ?? ''}`,
    columns: [
      { id: 'from', title: t('From'), value: (l) => name(l.from), cell: (l) => pick(l.from) },
      { id: 'to', title: t('To'), value: (l) => name(l.to), cell: (l) => pick(l.to), wide: true },
      { id: 'transport', title: t('Transport'), value: (l) => l.transport, cell: (l) => clean(l.transport, 30) || '–', hide: true },
      { id: 'relay', title: t('Relayed'), value: (l) => (l.relay ? name(l.relay) : ''), cell: (l) => (l.relay ? t('by {name}', { name: name(l.relay) }) : t('direct')), hide: true },
      { id: 'rtt', title: t('Delay'), value: (l) => l.rtt_ms || undefined, cell: (l) => (l.rtt_ms > 0 ? ms(l.rtt_ms) : '–'), end: true },
      { id: 'since', title: t('Since'), value: (l) => (l.since ? Date.parse(l.since) : 0), cell: (l) => (l.since ? html`<${Ago} value=${l.since} />` : '–'), hide: true },
      { id: 'seen_by', title: t('Seen by'), value: (l) => name(l.seen_by), cell: (l) => (l.seen_by ? name(l.seen_by) : '–'), hide: true },
    ],
  };
  const table = what === 'nodes' ? nodes : links;
  return html`<${Card} title=${t('Table')} sub=${what === 'nodes' ? plural(table.rows.length, 'node') : plural(table.rows.length, 'connection')} flush testid="mesh-tables"
    actions=${html`<${Segments} label=${t('Table of')} value=${what} options=${[['nodes', t('Nodes')], ['links', t('Connections')]]} onChange=${setWhat} testid="mesh-table-of" />`}>
    <div class="mesh-filter"><${SearchField} label=${t('Filter by name, DID or organization')} value=${filter} onInput=${(e) => setFilter(e.currentTarget.value)} testid="mesh-filter" /></div>
    ${table.rows.length === 0 && html`<${State} status="empty" title=${t('No row has this text.')} />`}
    ${table.rows.length > 0 && html`<${Table} key=${what} caption=${tableName(t(what === 'nodes' ? 'Nodes' : 'Connections'))} columns=${table.columns} rows=${table.rows} rowKey=${table.key} limit=${rows} sort=${what === 'nodes' ? 'name' : 'from'}
      isCurrent=${(row) => row.did !== undefined && row.did === chosen} onOpen=${what === 'nodes' ? (row) => onChoose(row.did) : undefined} testid=${`mesh-${what}`} />`}
    ${table.rows.length > rows && html`<div class="mesh-more"><${Button} onClick=${() => setRows(rows + 5 * ROWS)}>${t('Show more rows')}</${Button}><span class="muted">${t('{shown} of {all}', { shown: num(rows), all: num(table.rows.length) })}</span></div>`}
  </${Card}>`;
}
