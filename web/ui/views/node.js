// Node: what this node is, how it is configured, what it writes into its log, and whether it is well.
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { get, isAbort, send, stream } from '../api.js';
import { loadStatus, may, session, signOut, stateOf, status, statusError, useResource } from '../state.js';
import { go, href } from '../router.js';
import { Ago, announce, Badge, Button, Card, Dialog, Dot, Facts, Failure, Field, Heading, ID, Needs, Resource, rightsText, SearchField, Segments, SignIn, State, Steps, Table, ThemeSwitch } from '../ui.js';
import { at, clean, date, num, plural, t, time } from '../words.js';

const tabs = [['', 'About'], ['config', 'Configuration'], ['logs', 'Logs'], ['doctor', 'Doctor'], ['bridges', 'Bridges'], ['api', 'API']];

// ---- About ----

function About() {
  const s = status.value;
  const version = useResource('version');
  const who = session.value;
  const problem = statusError.value;
  if (!s) return html`<${State} status=${problem ? stateOf(problem) : 'loading'} rights="read" error=${problem} onRetry=${loadStatus} />`;
  const v = version.data;
  return html`<div class="columns wide" data-status="ready">
    <${Card} title=${t('Identity')} testid="node-identity"><${Facts} items=${[
      [t('Name'), clean(s.name, 80)],
      ['DID', html`<${ID} value=${s.did} short=${false} />`],
      [t('Peer id'), html`<${ID} value=${s.peer_id} short=${false} />`],
      [t('Network'), clean(s.network, 80)],
      [t('Profile'), clean(s.profile, 40)],
      [t('Callers'), clean(s.callers, 60)],
      [t('Started'), html`<span>${at(new Date(s.started))}</span>`],
      [t('Version'), v ? html`<span>${clean(v.version, 40)}${v.commit && html` · <code>${clean(v.commit, 12)}</code>`} · ${clean(v.go, 20)} · ${clean(v.platform, 30)}</span>` : clean(s.version, 40)],
      [t('Folder'), s.data_dir && html`<code class="break">${clean(s.data_dir, 300)}</code>`],
      ['API', s.api && html`<code class="break">${clean(s.api, 200)}</code>`],
      ['DHT', s.dht && `${clean(s.dht.mode, 20)} · ${plural(s.dht.table, 'peer')}`],
    ]} /></${Card}>
    <div class="stack">
      <${Card} title=${t('This page')} testid="node-session">
        <${Facts} items=${[
          [t('Rights'), html`<${Badge} tone=${may('call') ? 'accent' : ''}>${t(rightsText[who.rights])}</${Badge}>`],
          [t('Signed in by'), clean(who.maker, 120)],
          [t('Ends'), who.expires && html`<span>${at(who.expires)} · <${Ago} value=${who.expires} /></span>`],
        ]} />
        ${who.rights !== 'admin' && html`<${SignIn} rights="admin" />`}
        ${who.rights !== 'none' && html`<div class="row"><${Button} icon="lock" onClick=${signOut} data-testid="sign-out">${t('Sign out')}</${Button}></div>`}
        <${ThemeSwitch} />
      </${Card}>
      <${Card} title=${t('Addresses')} testid="node-addresses">${s.p2p?.length ? html`<ul class="addresses">${s.p2p.slice(0, 24).map((addr) => html`<li key=${addr}><${ID} value=${addr} short=${false} /></li>`)}</ul>` : html`<${State} status="empty" />`}</${Card}>
    </div>
  </div>`;
}

// ---- Configuration ----

const origins = { default: 'default', file: 'file', env: 'environment', flag: 'flag', profile: 'profile' };

function valueText(value) {
  if (value === null || value === undefined || value === '') return '–';
  return clean(typeof value === 'string' ? value : JSON.stringify(value), 300);
}

function Configuration({ route }) {
  const config = useResource('v1/config', { on: 'config', rights: 'admin' });
  const query = route.query.get('q') ?? '';
  const all = route.query.get('all') === '1';
  const change = (next) => go(href('node', '', { tab: 'config', q: query, all: all ? '1' : '', ...next }), { replace: true });
  return html`<${Resource} of=${config} rights="admin" title=${t('The configuration is shown to sessions with all rights.')} testid="config">${({ items }) => {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const changed = items.filter((item) => item.origin !== 'default');
    const rows = (all || words.length ? items : changed).filter((item) => words.every((w) => `${item.key} ${valueText(item.value)} ${item.origin}`.toLowerCase().includes(w)));
    return html`<div class="toolbar">
      <${SearchField} label=${t('Filter the keys')} placeholder=${t('Key or value')} value=${query} onInput=${(event) => change({ q: event.currentTarget.value })} />
      <${Segments} label=${t('Keys')} value=${all ? 'all' : 'changed'} onChange=${(v) => change({ all: v === 'all' ? '1' : '' })} options=${[['changed', t('Changed, {n}', { n: num(changed.length) })], ['all', t('All, {n}', { n: num(items.length) })]]} />
    </div>
    <${Card} flush>${rows.length ? html`<${Table} caption=${t('Configuration')} rows=${rows} rowKey=${(item) => item.key} testid="config-table" columns=${[
      { id: 'key', title: t('Key'), value: (item) => item.key, cell: (item) => html`<code>${clean(item.key, 80)}</code>` },
      { id: 'value', title: t('Value'), wide: true, cell: (item) => html`<code class="break">${valueText(item.value)}</code>` },
      { id: 'origin', title: t('From'), value: (item) => item.origin, cell: (item) => html`<${Badge} tone=${item.origin === 'default' ? '' : 'info'}>${t(origins[item.origin] ?? 'unknown')}</${Badge}>` },
      { id: 'where', title: t('Where'), hide: true, value: (item) => item.where, cell: (item) => html`<span class="break muted where">${clean(item.where, 160)}</span>` },
    ]} />` : html`<${State} status="empty" title=${words.length ? t('No key matches.') : t('Every key has its default.')} commands=${['lmosd config describe']} />`}</${Card}>`;
  }}</${Resource}>`;
}

// ---- Logs ----

const levels = ['debug', 'info', 'warn', 'error'];
const levelTones = { debug: '', info: 'info', warn: 'warn', error: 'bad' };
const mostLogs = 500;
const base = (level) => String(level).split(/[+-]/)[0];

/** useLogs reads the last records and those that come, while the page is visible: newest first. */
function useLogs(level, logger, held) {
  const [state, setState] = useState({ state: 'loading', items: [], levels: {}, loggers: [], error: null });
  const rights = session.value.rights;
  const reload = useRef(() => {});
  useEffect(() => {
    let controller = null;
    let waiting = [];
    let timer = 0;
    const publish = () => {
      timer = 0;
      const fresh = waiting.reverse();
      waiting = [];
      setState((s) => {
        const last = s.items[0]?.seq ?? 0;
        return { ...s, items: [...fresh.filter((r) => r.seq > last), ...s.items].slice(0, mostLogs) };
      });
    };
    let again = 0;
    const soon = () => {
      clearTimeout(again);
      again = setTimeout(() => !document.hidden && begin(), 1000);
    };
    const begin = async () => {
      clearTimeout(again);
      controller?.abort();
      controller = new AbortController();
      const { signal } = controller;
      try {
        const list = await get('v1/logs', { params: { limit: 200, level, logger }, signal });
        if (signal.aborted) return;
        setState({ state: 'ready', items: [...list.items].reverse(), levels: list.levels ?? {}, loggers: list.loggers ?? [], error: null });
        await stream('v1/logs', {
          params: { level, logger }, headers: { 'Last-Event-ID': String(list.latest ?? '') }, signal,
          onEvent: ({ event, data }) => {
            if (event === 'gap') soon(); // records are missing: the list has the newest ones
            if (!data || typeof data !== 'object' || !data.seq) return;
            waiting.push(data);
            if (waiting.length > mostLogs) waiting.shift();
            if (!timer) timer = setTimeout(publish, 120);
          },
        });
        if (!signal.aborted) soon();
      } catch (error) {
        if (signal.aborted || isAbort(error)) return;
        if (!error.status) {
          soon(); // broken off, or the node does not answer: the frame says so
          return;
        }
        setState((s) => ({ ...s, state: stateOf(error), error }));
      }
    };
    reload.current = begin;
    if (rights !== 'admin') {
      setState((s) => ({ ...s, state: 'denied', items: [] }));
      return undefined;
    }
    const visible = () => (document.hidden ? controller?.abort() : begin());
    begin();
    document.addEventListener('visibilitychange', visible);
    return () => {
      document.removeEventListener('visibilitychange', visible);
      clearTimeout(timer);
      clearTimeout(again);
      controller?.abort();
    };
  }, [level, logger, rights]);
  const frozen = useRef(null);
  if (!held) frozen.current = null;
  else frozen.current ??= state.items;
  return { ...state, items: frozen.current ?? state.items, reload: () => reload.current(), set: (next) => setState((s) => ({ ...s, ...next })) };
}

function Fields({ fields }) {
  const list = Object.entries(fields ?? {}).slice(0, 12);
  return list.map(([name, value]) => html`<span class="log-field" key=${name}><span class="muted">${clean(name, 40)}=</span>${clean(typeof value === 'string' ? value : JSON.stringify(value), 200)} </span>`);
}

function LevelChange({ logs }) {
  const [logger, setLogger] = useState('*');
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const current = logs.levels[logger] ?? logs.levels['*'] ?? 'info';
  const change = async (level) => {
    setBusy(true);
    setError(null);
    try {
      const { body } = await send('PUT', `v1/logs/${encodeURIComponent(logger)}`, { level });
      logs.set({ levels: body?.levels ?? { ...logs.levels, [logger]: level }, loggers: body?.loggers ?? logs.loggers });
      announce(t('Level of {logger}: {level}', { logger, level }));
    } catch (err) {
      setError(err);
    }
    setBusy(false);
  };
  return html`<div class="stack tight"><div class="toolbar">
    <${Field} label=${t('Logger')}>${({ id }) => html`<select id=${id} value=${logger} onChange=${(event) => setLogger(event.currentTarget.value)} data-testid="log-logger"><option value="*">${t('all others')}</option>${logs.loggers.map((name) => html`<option key=${name} value=${name}>${clean(name, 60)}</option>`)}</select>`}</${Field}>
    <${Field} label=${t('Writes from level')}>${({ id }) => html`<select id=${id} value=${base(current)} disabled=${busy} onChange=${(event) => change(event.currentTarget.value)} data-testid="log-level-change">${levels.map((level) => html`<option key=${level} value=${level}>${level}</option>`)}</select>`}</${Field}>
    </div><p class="muted">${t('The change is in force at once, and until the node stops.')}</p>${error && html`<${Failure} error=${error} />`}</div>`;
}

function Logs({ route }) {
  const level = route.query.get('level') ?? '';
  const logger = route.query.get('logger') ?? '';
  const [held, setHeld] = useState(false);
  const [levelsOpen, setLevelsOpen] = useState(false);
  const logs = useLogs(level, logger, held);
  const change = (next) => go(href('node', '', { tab: 'logs', level, logger, ...next }), { replace: true });
  if (logs.state !== 'ready') return html`<${State} status=${logs.state} error=${logs.error} onRetry=${logs.reload} title=${logs.state === 'denied' ? t('The log is shown to sessions with all rights.') : undefined} testid="logs" />`;
  return html`<div class="stack" data-status=${logs.items.length ? 'ready' : 'empty'} data-testid="logs">
    <div class="toolbar">
      <${Segments} label=${t('Shown from level')} value=${level || 'all'} onChange=${(v) => change({ level: v === 'all' ? '' : v })} options=${[['all', t('All')], ['info', 'info'], ['warn', 'warn'], ['error', 'error']]} testid="log-level" />
      <${Field} label=${t('Logger')} hideLabel>${({ id }) => html`<select id=${id} value=${logger} onChange=${(event) => change({ logger: event.currentTarget.value })}><option value="">${t('Every logger')}</option>${logs.loggers.map((name) => html`<option key=${name} value=${name}>${clean(name, 60)}</option>`)}</select>`}</${Field}>
      <${Button} icon=${held ? 'play' : 'pause'} aria-pressed=${held ? 'true' : 'false'} onClick=${() => setHeld(!held)}>${held ? t('Continue') : t('Pause')}</${Button}>
      <${Button} onClick=${() => setLevelsOpen(true)} data-testid="log-levels-open">${t('Levels')}</${Button}>
    </div>
    <${Card} flush>${logs.items.length ? html`<ol class="logs">${logs.items.slice(0, 200).map((record) => html`<li key=${record.seq} class="log" data-testid="log"><time class="num" datetime=${date(record.at)?.toISOString()} title=${at(record.at)}>${time(record.at)}</time>
      <${Badge} tone=${levelTones[base(record.level)] ?? ''}>${clean(record.level, 10)}</${Badge}><span class="log-logger muted">${clean(record.logger, 30)}</span>
      <span class="log-text">${clean(record.text, 400)} <span class="log-fields"><${Fields} fields=${record.fields} /></span></span></li>`)}</ol>`
      : html`<${State} status="empty" title=${level || logger ? t('No record matches.') : t('The log is empty.')} />`}</${Card}>
    ${levelsOpen && html`<${Dialog} title=${t('Levels')} onClose=${() => setLevelsOpen(false)} testid="log-levels">
      <div class="chips">${Object.entries(logs.levels).map(([name, value]) => html`<${Badge} key=${name} tone=${levelTones[base(value)]}>${name === '*' ? t('all others') : clean(name, 40)}: ${clean(value, 12)}</${Badge}>`)}</div><${LevelChange} logs=${logs} /></${Dialog}>`}
  </div>`;
}

// ---- Doctor ----

const checkTones = { pass: 'good', warn: 'warn', fail: 'bad', skip: '' };
const checkWords = { pass: 'Pass', warn: 'Warning', fail: 'Failed', skip: 'Skipped' };

function Doctor() {
  const [result, setResult] = useState({ state: 'idle', data: null, error: null });
  const run = async () => {
    setResult((r) => ({ ...r, state: 'running', error: null }));
    try {
      const { body } = await send('POST', 'v1/doctor', {});
      setResult({ state: 'ready', data: body, error: null });
      announce(body.ok ? t('All checks passed') : t('A check failed'));
    } catch (error) {
      setResult({ state: 'error', data: null, error });
    }
  };
  const { state, data, error } = result;
  return html`<${Needs} rights="admin" title=${t('The checks run for sessions with all rights.')}>
    <div class="row"><${Button} kind="primary" busy=${state === 'running'} onClick=${run} data-testid="doctor-run">${state === 'running' ? t('Checking …') : data ? t('Check again') : t('Check this node')}</${Button}>
      ${data && html`<${Badge} tone=${data.ok ? 'good' : 'bad'}>${data.ok ? t('All checks passed') : t('A check failed')}</${Badge}>`}</div>
    ${error ? html`<${State} status=${error.missing ? 'missing' : 'error'} error=${error} />` : !data ? html`<${State} status=${state === 'running' ? 'loading' : 'empty'} title=${state === 'running' ? undefined : t('Checks keys, clock, storage, addresses, relays and bridges, and says what to do.')} testid="doctor" />`
    : html`<${Card} flush testid="doctor"><ol class="doctor" data-status="ready">${data.items.map((item) => html`<li key=${item.name} class="check" data-check=${item.status}>
      <${Dot} tone=${checkTones[item.status]} /><div class="stack tight"><div class="row"><h3>${clean(item.name, 60)}</h3><${Badge} tone=${checkTones[item.status]}>${t(checkWords[item.status] ?? 'unknown')}</${Badge}></div>
      <p class="break">${clean(item.text, 500)}</p>${item.hint && html`<p class="hint break">${clean(item.hint, 500)}</p>`}<${Steps} next=${item.next} /></div></li>`)}</ol></${Card}>`}
  </${Needs}>`;
}

// ---- Bridges ----

const discoveryTones = { explored: 'good', failed: 'bad', waiting: 'info', mesh: 'accent' };

function Bridges() {
  const bridges = useResource('v1/bridges', { every: 10_000, rights: 'admin' });
  const found = useResource('v1/discovered', { on: 'agent', every: 30_000, rights: 'admin' });
  return html`<${Resource} of=${bridges} rights="admin" title=${t('Bridges are shown to sessions with all rights.')} testid="bridges">${({ items }) => html`<${Card} title=${t('Bridges')} sub=${t('Clients of other protocols reach the mesh here')} flush>
      ${items.length ? html`<${Table} caption=${t('Bridges')} rows=${items} rowKey=${(b) => b.name} columns=${[
        { id: 'name', title: t('Protocol'), value: (b) => b.name, cell: (b) => html`<b>${clean(b.name, 40)}</b>` },
        { id: 'status', title: t('Check'), value: (b) => b.status, cell: (b) => html`<${Badge} tone=${checkTones[b.status] ?? ''} title=${clean(b.text, 200)}>${t(checkWords[b.status] ?? 'unknown')}</${Badge}>` },
        { id: 'paths', title: t('Paths'), wide: true, cell: (b) => html`<span class="break">${(b.paths ?? []).slice(0, 12).map((path) => html`<code class="path-code" key=${path}>${clean(path, 100)}</code> `)}</span>` },
        { id: 'requests', title: t('Requests'), end: true, value: (b) => b.requests, cell: (b) => num(b.requests) },
        { id: 'errors', title: t('Errors'), end: true, value: (b) => b.errors, cell: (b) => num(b.errors) },
        { id: 'last', title: t('Last'), hide: true, value: (b) => b.last, cell: (b) => html`<span class="nowrap"><${Ago} value=${b.last} /></span>` },
      ]} />` : html`<${State} status="empty" title=${t('No bridge is on.')} commands=${['lmosd install claude']} />`}</${Card}>
    ${found.data && html`<${Card} title=${t('Found on the local network')} flush testid="discovered">${found.data.items.length ? html`<${Table} caption=${t('Found on the local network')} rows=${found.data.items} rowKey=${(d) => d.url + d.name} columns=${[
      { id: 'name', title: t('Name'), value: (d) => d.name, cell: (d) => html`<b class="break">${clean(d.name, 80)}</b>` },
      { id: 'url', title: t('Address'), wide: true, cell: (d) => html`<code class="break">${clean(d.url, 160)}</code>` },
      { id: 'state', title: t('State'), value: (d) => d.state, cell: (d) => html`<${Badge} tone=${discoveryTones[d.state] ?? ''} title=${clean(d.error, 200)}>${clean(d.state, 20)}</${Badge}>` },
      { id: 'things', title: t('Agents'), end: true, value: (d) => d.things?.length ?? 0, cell: (d) => num(d.things?.length ?? 0) },
      { id: 'at', title: t('Since'), hide: true, value: (d) => d.at, cell: (d) => html`<span class="nowrap"><${Ago} value=${d.at} /></span>` },
    ]} />` : html`<${State} status="empty" title=${t('Nothing was introduced.')} />`}</${Card}>`}`}</${Resource}>`;
}

// ---- API ----

function API() {
  const index = useResource('');
  const [query, setQuery] = useState('');
  return html`<${Resource} of=${index} rights="read" testid="api">${(doc) => {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const paths = new Map();
    for (const { method, path } of doc.items ?? []) paths.set(path, [...(paths.get(path) ?? []), ...(method ? [method] : [])]);
    const rows = [...paths].map(([path, methods]) => ({ path, methods })).filter((r) => words.every((w) => `${r.path} ${r.methods.join(' ')}`.toLowerCase().includes(w)));
    return html`<div class="toolbar"><${SearchField} label=${t('Filter the routes')} placeholder=${t('Path or method')} value=${query} onInput=${(event) => setQuery(event.currentTarget.value)} /><span class="muted">${plural(rows.length, 'path')}</span></div>
    <${Card} flush><${Table} caption=${t('Routes of the API')} rows=${rows} rowKey=${(r) => r.path} columns=${[
      { id: 'methods', title: t('Methods'), cell: (r) => html`<span class="row">${(r.methods.length ? r.methods : [t('any')]).map((m) => html`<${Badge} key=${m}>${clean(m, 10)}</${Badge}>`)}</span>` },
      { id: 'path', title: t('Path'), wide: true, value: (r) => r.path, cell: (r) => html`<code class="break">${clean(r.path, 120)}</code>` },
    ]} /></${Card}>`;
  }}</${Resource}>`;
}

const parts = { '': About, config: Configuration, logs: Logs, doctor: Doctor, bridges: Bridges, api: API };

export default function Node({ route }) {
  const tab = route.query.get('tab') ?? '';
  const Part = Object.hasOwn(parts, tab) ? parts[tab] : About;
  return html`<${Heading} title=${t('Node')} sub=${clean(status.value?.name, 60)} />
    <nav class="tabs" aria-label=${t('Parts of this view')}><ul>${tabs.map(([name, text]) => html`<li key=${name}><a href=${href('node', '', { tab: name })} aria-current=${name === tab ? 'page' : undefined} data-testid=${`tab-${name || 'about'}`}>${t(text)}</a></li>`)}</ul></nav>
    <${Part} key=${tab} route=${route} />`;
}
