// Overview: is the node well, what needs attention, what happened last.
import { html, useMemo } from '../vendor/preact.js';
import { loadStatus, now, stateOf, status, statusError, useResource } from '../state.js';
import { href } from '../router.js';
import { Ago, Card, Command, Dot, Heading, Icon, nodeState, State, Steps } from '../ui.js';
import { bytes, clean, date, dur, ms, num, plural, shortDID, t } from '../words.js';
import { Chart } from '../charts.js';
import { EventRow } from '../eventrow.js';
import { useRecent } from '../journal.js';

const reachWords = { public: 'Public', local: 'Local', private: 'Private', unknown: 'Unknown' };

function Tile({ name, value, sub, to, tone, testid }) {
  const body = html`<span class="tile-name">${name}</span><span class="tile-value">${tone && html`<${Dot} tone=${tone} />`}${value}</span><span class="tile-sub" title=${sub}>${sub}</span>`;
  return html`<li>${to ? html`<a class="tile" href=${to} data-testid=${testid}>${body}</a>` : html`<div class="tile" data-testid=${testid}>${body}</div>`}</li>`;
}

function Tiles({ s }) {
  const up = Math.max(0, (Math.max(now.value, Date.now() - 10_000) - s.started) / 1000);
  const [tone, word] = nodeState(s);
  const failed = s.calls.total ? `${plural(s.calls.errors, 'error')} · ${ms(s.calls.p50_ms)}` : t('none yet');
  return html`<ul class="tiles" aria-label=${t('State of the node')}>
    <${Tile} name=${t('Node')} value=${word} tone=${tone} sub=${t('profile {name}', { name: clean(s.profile, 24) })} to=${href('node')} testid="tile-state" />
    <${Tile} name=${t('Network')} value=${t(reachWords[s.reachability] ?? 'Unknown')} sub=${clean(s.network, 32)} to=${href('network')} testid="tile-network" />
    <${Tile} name=${t('Peers')} value=${num(s.peers.total)} sub=${s.peers.relayed ? t('{n} relayed', { n: num(s.peers.relayed) }) : t('all direct')} to=${href('mesh')} testid="tile-peers" />
    <${Tile} name=${t('Agents')} value=${num(s.agents.known)} sub=${t('{n} of this node', { n: num(s.agents.local) })} to=${href('agents')} testid="tile-agents" />
    <${Tile} name=${t('Calls')} value=${num(s.calls.total)} sub=${failed} to=${href('calls')} testid="tile-calls" />
    <${Tile} name=${t('Up')} value=${dur(up)} sub=${clean(s.version, 24)} testid="tile-up" />
  </ul>`;
}

function Warnings({ items }) {
  if (!items?.length) return null;
  return html`<div class="columns wide" data-testid="warnings">${items.slice(0, 12).map((w) => html`<${Card} key=${w.code + w.text} tone=${w.severity === 'high' ? 'bad' : 'warn'} testid="warning">
    <div class="warning-head"><${Icon} name="warning" /><h2>${clean(w.title, 120)}</h2><code class="muted">${clean(w.code, 20)}</code></div>
    <p class="break">${clean(w.text, 600)}</p>
    ${w.hint && html`<p class="hint break">${clean(w.hint, 600)}</p>`}<${Steps} next=${w.next} />
    <p class="muted"><${Ago} value=${w.since} /></p>
  </${Card}>`)}</div>`;
}

/** FirstSteps is shown while the mesh has no agents or no peers. */
function FirstSteps({ s }) {
  const addr = s.p2p?.[0] ? clean(s.p2p[0], 300) : '';
  const steps = [
    [t('Offer an agent'), t('Any command can be one. A web server, an MCP server or an A2A agent can, too.'), "lmosd expose 'exec:tr a-z A-Z' --name upper --action shout"],
    [t('Add a node'), t('Run it on another host. On one local network the nodes find each other without the address.'), addr ? `lmosd run --mesh.bootstrap ${addr}` : 'lmosd run'],
    [t('Call the agent'), t('From any node, or on this page in the view Agents.'), 'lmosd call upper shout "hello mesh"'],
  ];
  return html`<${Card} title=${t('First steps')} testid="first-steps"><div data-status="empty"><ol class="steps3">${steps.map(([name, text, command]) => html`<li key=${name}><h3>${name}</h3><p class="muted">${text}</p><${Command} text=${command} /></li>`)}</ol></div></${Card}>`;
}

function Charts() {
  const series = useResource('v1/series', { params: { window: '15m' }, every: 5000, pace: 2000 });
  const data = series.data;
  const times = useMemo(() => {
    const to = date(data?.to);
    if (!to) return [];
    const n = data.items.calls?.length ?? 0;
    const end = Math.floor(to.getTime() / 1000);
    return Array.from({ length: n }, (_, i) => end - (n - 1 - i) * data.step_s);
  }, [data]);
  if (series.state === 'missing' || series.state === 'denied') return null;
  if (!data) return html`<${State} status=${series.state} error=${series.error} onRetry=${series.reload} />`;
  if (!times.length) return html`<${Card} title=${t('Last 15 minutes')} testid="charts"><p class="muted" data-status="empty">${t('The node measures. The first values come within seconds.')}</p></${Card}>`;
  const items = data.items;
  const one = (n) => num(n);
  const rate = (n) => (n === null || n === undefined ? '–' : n > 0 && n < 1 ? n.toFixed(2) : num(n));
  return html`<${Card} title=${t('Last 15 minutes')} testid="charts"><div class="charts">
    <${Chart} title=${t('Calls')} times=${times} series=${[{ label: t('per second'), values: items.calls, token: '--series-1', format: rate, fill: true }, { label: t('errors'), values: items.errors, token: '--series-2', format: rate }]} />
    <${Chart} title=${t('Duration')} times=${times} series=${[{ label: 'p50', values: items.p50_ms, token: '--series-1', format: ms }, { label: 'p99', values: items.p99_ms, token: '--series-3', format: ms }]} />
    <${Chart} title=${t('Mesh')} times=${times} series=${[{ label: t('agents'), values: items.agents, token: '--series-1', format: one, fill: true }, { label: t('peers'), values: items.peers, token: '--series-3', format: one }]} />
    ${items.rss_bytes?.some((v) => v !== null) && html`<${Chart} title=${t('Memory')} times=${times} series=${[{ label: t('resident'), values: items.rss_bytes, token: '--series-1', format: bytes, fill: true }]} />`}
  </div></${Card}>`;
}

function Recent() {
  const { state, items } = useRecent();
  if (state !== 'ready' && state !== 'loading') return null;
  return html`<${Card} title=${t('Latest events')} flush testid="recent" actions=${html`<a href=${href('events')}>${t('All events')}</a>`}>
    ${items.length ? html`<ol class="events compact">${items.slice(0, 8).map((event) => html`<${EventRow} key=${event.seq} event=${event} />`)}</ol>`
    : html`<${State} status=${state === 'loading' ? 'loading' : 'empty'} title=${state === 'loading' ? undefined : t('No event yet. What changes in the mesh appears here.')} />`}
  </${Card}>`;
}

export default function Overview() {
  const s = status.value;
  const error = statusError.value;
  const empty = s && (s.peers.total === 0 || s.agents.known === 0);
  return html`
    <${Heading} title=${t('Overview')} sub=${s && html`<span title=${clean(s.did, 200)} class="mono">${shortDID(s.did)}</span>`} />
    ${s ? html`<div class="stack" data-status=${empty ? 'empty' : 'ready'} data-testid="overview">
      <${Tiles} s=${s} /><${Warnings} items=${s.warnings} />${empty && html`<${FirstSteps} s=${s} />`}<${Charts} /><${Recent} /></div>`
    : error ? html`<${State} status=${stateOf(error)} rights="read" error=${error} onRetry=${loadStatus} />` : html`<${State} status="loading" />`}`;
}
