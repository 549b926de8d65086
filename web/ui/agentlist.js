// All agents of the index of the node, kept once for the page: the pages of /v1/agents, and then the events after them.
import { signal } from './vendor/preact.js';
import { get, isAbort, seg } from './api.js';
import { on, ready, session, stateOf } from './state.js';

const pageSize = 1000;
// A full directory has 100,000 agents; a page keeps no more.
const most = 100_000;
// Changed agents that are asked for one by one; more are one new list.
const single = 8;

/** agents is the list: items by title, state loading, ready, denied or error. complete is false while pages still come. */
export const agents = signal({ state: 'loading', items: [], total: undefined, coverage: null, complete: false, error: null });

let known = new Map();
let users = 0;
let loading = null;
let waiting = [];
let lastLoad = 0;
let again = 0;

/** prepare adds what the list needs of an agent often: its text for the filter, and its facets. */
export function prepare(agent) {
  const list = (v) => (Array.isArray(v) ? v : v ? [v] : []).filter((x) => typeof x === 'string' && x).slice(0, 64);
  const facets = {
    capability: list(agent.capabilities),
    type: list(agent.type),
    organization: list(agent.organization?.name),
    protocol: list(agent.protocol),
  };
  const short = (v) => (typeof v === 'string' ? v.slice(0, 500) : '');
  const hay = [short(agent.title), short(agent.name), short(agent.description), ...facets.capability, ...list(agent.actions), ...list(agent.properties), ...facets.organization, ...facets.type].join(' ').toLowerCase().slice(0, 4000);
  return { agent, facets, hay, key: agent.ref, sort: short(agent.title || agent.name).toLowerCase().slice(0, 80) };
}

function publish(change = {}) {
  // By title, then by reference, compared by code units: a collator is 20 times slower at 10,000.
  const items = [...known.values()].sort((a, b) => (a.sort < b.sort ? -1 : a.sort > b.sort ? 1 : a.key < b.key ? -1 : 1));
  agents.value = { ...agents.peek(), items, ...change };
}

async function load() {
  loading?.abort();
  const controller = new AbortController();
  loading = controller;
  const { signal: ends } = controller;
  lastLoad = Date.now();
  waiting = [];
  clearTimeout(again);
  again = 0;
  const next = new Map();
  let latest = 0;
  try {
    await ready; // what is loaded after the stream began misses no event
    let cursor = '';
    let total;
    let coverage = null;
    for (;;) {
      const page = await get('v1/agents', { params: { limit: pageSize, cursor }, signal: ends });
      if (ends.aborted) return;
      for (const agent of page.items ?? []) next.set(agent.ref, prepare(agent));
      latest ||= page.latest ?? 0;
      total = page.total ?? total;
      coverage = page.coverage ?? coverage;
      const before = cursor;
      cursor = page.next ?? '';
      if (!cursor || cursor === before || next.size >= most) break;
      // The first page is shown at once; a list that is there stays until the new one is whole.
      if (!known.size || known === next) {
        known = next;
        publish({ state: 'ready', total, coverage, complete: false, error: null });
      }
    }
    if (ends.aborted) return;
    known = next;
    loading = null;
    publish({ state: 'ready', total: total ?? next.size, coverage, complete: true, error: null });
    const missed = waiting;
    waiting = [];
    for (const event of missed) if (!(event.seq <= latest)) apply(event);
    if (!(coverage?.asked > 1)) askMesh(ends);
  } catch (error) {
    if (ends.aborted || isAbort(error)) return;
    loading = null;
    const state = stateOf(error);
    if (state === 'denied') known = new Map();
    publish({ state: known.size ? 'ready' : state, error, complete: true });
  }
}

// A small index may lack what the mesh has: the mesh is asked once for a list, since an idle page must cost nothing.
async function askMesh(ends) {
  if (known.size >= pageSize) return;
  try {
    const page = await get('v1/find', { params: { limit: pageSize, timeout: '1s' }, signal: ends });
    if (ends.aborted) return;
    for (const agent of page.items ?? []) if (!known.has(agent.ref)) known.set(agent.ref, prepare(agent));
    publish({ coverage: page.coverage, total: known.size });
  } catch {
    // The list is there without it.
  }
}

// The first change is shown in the next frame; of many changes, four lists a second: sorting 10,000 takes a frame.
let drawing = false;
let drawn = 0;
function draw() {
  if (drawing) return;
  drawing = true;
  const show = () => {
    drawing = false;
    drawn = performance.now();
    publish({ total: known.size });
  };
  const wait = drawn + 250 - performance.now();
  if (wait > 0) setTimeout(show, wait);
  else requestAnimationFrame(show);
}

let changed = new Set();
let asking = false;

function apply(event) {
  if (event.kind === 'gap') {
    reloadSoon();
    return;
  }
  if (loading) {
    waiting.push(event);
    if (waiting.length > 5000) waiting = [{ kind: 'gap' }];
    return;
  }
  const entry = known.get(event.thing);
  switch (event.kind) {
    case 'agent.removed':
      if (known.delete(event.thing)) draw();
      changed.delete(event.thing);
      return;
    case 'agent.reachable':
    case 'agent.unreachable':
      if (entry) {
        const state = event.kind === 'agent.reachable' ? 'reachable' : 'unreachable';
        known.set(event.thing, { ...entry, agent: { ...entry.agent, state } });
        draw();
        return;
      }
  }
  if (!event.thing) return;
  changed.add(event.thing);
  ask();
}

async function ask() {
  if (asking) return;
  asking = true;
  try {
    // All events of this frame come first, so that a burst is one list.
    await Promise.resolve();
    while (changed.size && users) {
      if (changed.size > single) {
        changed.clear();
        reloadSoon();
        return;
      }
      const refs = [...changed];
      changed.clear();
      const found = await Promise.all(refs.map((ref) => get(`v1/agents/${seg(ref)}`).then((d) => [ref, d], (err) => [ref, err])));
      for (const [ref, document] of found) {
        if (document?.agent) known.set(document.agent.ref, prepare(document.agent));
        else if (document?.status === 404 || document?.status === 410) known.delete(ref);
      }
      draw();
    }
  } finally {
    asking = false;
  }
}

function reloadSoon() {
  if (again || !users) return;
  again = setTimeout(() => {
    // A hidden page asks for nothing.
    if (document.hidden) document.addEventListener('visibilitychange', () => users && load(), { once: true });
    else load();
  }, Math.max(0, lastLoad + 2000 - Date.now()));
}

/** retry loads the list again. */
export const retry = load;

let off = null;
let rights = '';

/** use keeps the list up to date until the function that it returns is called. */
export function use() {
  users++;
  const fresh = off && rights === session.peek().rights;
  if (!off) off = on('agent', apply);
  if (!fresh || agents.peek().state !== 'ready') load();
  rights = session.peek().rights;
  const stop = session.subscribe((s) => {
    if (s.rights === rights) return;
    rights = s.rights;
    // What other rights have seen must not be seen.
    known = new Map();
    agents.value = { state: 'loading', items: [], total: undefined, coverage: null, complete: false, error: null };
    load();
  });
  return () => {
    stop();
    if (--users) return;
    // Nothing is asked for a list that is not shown; it is loaded anew when it is.
    off?.();
    off = null;
    loading?.abort();
    loading = null;
    changed.clear();
    clearTimeout(again);
    again = 0;
  };
}
