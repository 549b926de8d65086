// What the page knows, kept once: session, status, connection and the bus of live events.
import { batch, signal, useEffect, useMemo, useSignal } from './vendor/preact.js';
import { get, hooks, isAbort, key, keyRights, request, send, setKey, stream } from './api.js';

/** session has the rights of the page: none (looks only), read, call or admin. */
export const session = signal({ rights: keyRights() });

/** notice is a message of the page about itself, or null. kind: info or warn. */
export const notice = signal(null);

/** status is the last GET /v1/status without uptime_s, which changes always, with `started` in its place; null before the first. */
export const status = signal(null);

/** statusError is why there is no status, or null: a Problem. */
export const statusError = signal(null);

/** stateOf returns the state of a view for a Problem: denied (needs more rights), missing (no such route) or error. */
export const stateOf = (error) => (error.denied ? 'denied' : error.missing ? 'missing' : 'error');

/** connected is connecting, live, lost (the node does not answer) or paused (the page is hidden). */
export const connected = signal('connecting');

/** lostAt is the time of the last answer while connected is lost; else 0. */
export const lostAt = signal(0);

/** now is the time of the shared clock: every 10 s while the page is visible. Texts like "3 min ago" read it. */
export const now = signal(Date.now());

const order = ['none', 'read', 'call', 'admin'];

/** may is true if the page has a right: read, call or admin. Reading it subscribes a component to the session. */
export function may(right) {
  return order.indexOf(session.value.rights) >= order.indexOf(right);
}

/** same is true if two documents of the API say the same, apart from members that change with each answer. */
export function same(a, b, ignore = ['took_ms', 'uptime_s', 'at']) {
  if (a === b) return true;
  const skip = (name, value) => (ignore.includes(name) ? undefined : value);
  return JSON.stringify(a, skip) === JSON.stringify(b, skip);
}

// ---- Session ----

/** loadSession asks which rights the page has now. */
export async function loadSession() {
  const asked = key();
  try {
    const s = await get('console/session');
    if (key() !== asked) return; // signed in or out meanwhile: the answer is of another session
    if (s.rights === 'none' && asked) ended();
    else if (!same(s, session.peek())) session.value = s;
  } catch (err) {
    if (key() === asked && err.status && session.peek().rights !== 'none') session.value = { rights: 'none' };
  }
}

function ended() {
  setKey('');
  session.value = { rights: 'none' };
  notice.value = { kind: 'warn', name: 'ended' };
}

/** signIn trades the code of a link for a session. */
export async function signIn(code) {
  try {
    const { body } = await send('POST', 'console/session', { once: code }, { quiet: true });
    setKey(body.key, body.rights);
    const { key: _, ...rest } = body;
    session.value = rest;
    notice.value = { kind: 'info', name: 'signedIn' };
  } catch (err) {
    notice.value = { kind: 'warn', name: err.status ? 'linkUsed' : 'lost' };
    await loadSession();
  }
}

/** signOut ends the session of this browser. */
export async function signOut() {
  try {
    await send('DELETE', 'console/session', undefined, { quiet: true });
  } catch {
    // Gone already.
  }
  setKey('');
  session.value = { rights: 'none' };
  notice.value = { kind: 'info', name: 'signedOut' };
}

let checking = false;
hooks.refused = () => {
  // A 401 with a key: the session may have ended, or only this request needs more.
  if (checking) return;
  checking = true;
  loadSession().finally(() => (checking = false));
};

// ---- Connection ----

let lastAnswer = Date.now();
let failures = 0;

hooks.reached = (ok) => {
  if (ok) {
    lastAnswer = Date.now();
    failures = 0;
    if (connected.peek() === 'lost') recovered();
  } else if (!document.hidden) {
    failures++;
    if (failures >= 2) lose();
    else setTimeout(probe, 300);
  }
};

function lose() {
  if (connected.peek() === 'lost') return;
  batch(() => {
    lostAt.value = lastAnswer;
    connected.value = 'lost';
  });
  probeSoon();
}

function recovered() {
  batch(() => {
    lostAt.value = 0;
    connected.value = 'live';
  });
  // The node may be another one than before: rights and data are asked again.
  loadSession();
  loadStatus();
  deliver({ kind: 'gap' });
  reading?.abort(); // the wait before the next try ends
}

// Between the events of a quiet mesh the page asks whether the node is there, so that a lost one is said within 5 s.
const quietFor = 2500;
const answerWithin = 2000;
let probing = false;

async function probe() {
  if (probing || document.hidden) return;
  probing = true;
  const controller = new AbortController();
  const timer = setTimeout(() => controller.abort(), answerWithin);
  try {
    await request('healthz', { signal: controller.signal, quiet: true });
    hooks.reached(true);
    if (leading) channel?.postMessage({ type: 'alive' });
  } catch (err) {
    // 503: the node stops, but it answers.
    if (err.status) hooks.reached(true);
    else lose();
  } finally {
    clearTimeout(timer);
    probing = false;
  }
}

let probeTimer = 0;
function probeSoon() {
  clearTimeout(probeTimer);
  if (document.hidden) return;
  const wait = connected.peek() === 'lost' ? 1000 : Math.max(250, lastAnswer + quietFor - Date.now());
  probeTimer = setTimeout(async () => {
    if (connected.peek() === 'lost' || Date.now() - lastAnswer >= quietFor) await probe();
    probeSoon();
  }, wait);
}

// ---- Status ----

let statusTimer = 0;
let statusDue = 0;

/** loadStatus asks for the status now; the same status is no change. */
export async function loadStatus() {
  statusDue = Date.now() + 1000;
  try {
    const { uptime_s: uptime, ...rest } = await get('v1/status');
    // In steps of 10 s: the difference of two clocks moves with each answer.
    rest.started = Math.round((Date.now() - uptime * 1000) / 10_000) * 10_000;
    const before = status.peek();
    if (before && Math.abs(before.started - rest.started) <= 10_000) rest.started = before.started;
    batch(() => {
      statusError.value = null;
      if (!same(rest, before)) status.value = rest;
    });
  } catch (err) {
    if (isAbort(err) || err.status === 0) return; // the frame says that the node is lost
    batch(() => {
      statusError.value = err;
      if (err.denied) status.value = null;
    });
  }
}

/** statusSoon asks for the status at most once a second. */
export function statusSoon() {
  if (statusTimer || document.hidden) return;
  statusTimer = setTimeout(() => {
    statusTimer = 0;
    loadStatus();
  }, Math.max(0, statusDue - Date.now()));
}

// ---- Events ----

/** A LiveEvent is one event as in GET /v1/events; kind gap: events are missing, load the data again. */

const listeners = new Set();

/**
 * on calls fn with each live event of the kinds: 'agent' stands for all agent.*, '*' for all. gap comes to every listener whose events
 * may be missing.
 * The function that it returns ends that.
 */
export function on(kinds, fn) {
  const entry = { kinds: [].concat(kinds), fn };
  listeners.add(entry);
  return () => listeners.delete(entry);
}

// A gap with a name misses events of that kind only.
function wants(kinds, event) {
  const kind = event.kind === 'gap' ? event.name || '*' : event.kind;
  return kind === '*' || kinds.some((k) => k === '*' || kind === k || kind.startsWith(`${k}.`) || k.startsWith(`${kind}.`));
}

// Events wait for the next frame: 10,000 changes a second are one rendering each 16 ms.
const maxWaiting = 5000;
let waiting = [];
let frame = 0;

function deliver(event) {
  waiting.push(event);
  if (waiting.length > maxWaiting) waiting = [{ kind: 'gap' }];
  flushSoon();
}

// In a hidden page the events wait until it is shown: what they change would be asked for.
function flushSoon() {
  if (!frame && waiting.length && !document.hidden) frame = requestAnimationFrame(flush);
}

function flush() {
  frame = 0;
  const events = waiting;
  waiting = [];
  batch(() => {
    for (const event of events) {
      for (const { kinds, fn } of listeners) {
        if (!wants(kinds, event)) continue;
        try {
          fn(event);
        } catch (err) {
          console.error(err);
        }
      }
    }
  });
}

on(['peer', 'agent', 'warning', 'relay', 'config', 'equivocation'], statusSoon);

// ---- The one stream ----

const name = `lmosd:${location.pathname}`;
const locks = navigator.locks;
// Without locks (plain http under a name is no secure context) each visible tab reads a stream of its own.
const channel = locks && 'BroadcastChannel' in globalThis ? new BroadcastChannel(name) : null;

let lastSeq = 0;
let leading = false;
let reading = null; // the stream that this tab reads
let turn = null; // ends the turn of this tab, or its place in the queue

let opened = () => {};
/** ready resolves when the live stream has begun, or after half a second without it: what is loaded then misses no event. */
export const ready = new Promise((resolve) => {
  opened = resolve;
  setTimeout(resolve, 500);
});

function take(event) {
  if (event.kind !== 'gap') {
    if (!(event.seq > lastSeq)) return;
    lastSeq = event.seq;
  } else if (event.to > lastSeq) {
    lastSeq = event.to;
  }
  deliver(event);
}

// Events go to the other tabs together: a message for each costs more than the event.
let outbox = [];
function share(event) {
  outbox.push(event);
  if (outbox.length > 1) return;
  setTimeout(() => {
    channel.postMessage({ type: 'events', events: outbox });
    outbox = [];
  }, 20);
}

if (channel) {
  channel.onmessage = ({ data }) => {
    if (data.type === 'events') data.events.forEach(take);
    if (document.hidden) return;
    if (data.type === 'events') {
      hooks.reached(true);
      if (connected.peek() === 'connecting') connected.value = 'live';
    } else if (data.type === 'open') {
      hooks.reached(true);
      if (!leading) {
        // The leader began after events that this tab has not seen.
        if (lastSeq && data.since > lastSeq) deliver({ kind: 'gap' });
        lastSeq = Math.max(lastSeq, data.since);
        if (connected.peek() !== 'lost') connected.value = 'live';
        opened();
      }
    } else if (data.type === 'alive') {
      hooks.reached(true);
    } else if (data.type === 'who' && leading && reading) {
      channel.postMessage({ type: 'open', since: lastSeq });
    }
  };
}

// Other rights bring other events. The other tabs see the change of the key in the storage.
let openedWith = '';
session.subscribe(() => {
  if (key() !== openedWith) reading?.abort();
});

const forever = 0x7fffffff; // the longest timer
let lastAlive = 0;
async function read(signal) {
  let wait = 250;
  while (!signal.aborted) {
    const own = new AbortController();
    reading = own;
    const stop = () => own.abort();
    signal.addEventListener('abort', stop, { once: true });
    let retry = true;
    try {
      const since = lastSeq;
      openedWith = key();
      await stream('v1/events', {
        signal: own.signal,
        params: { since: since || undefined }, // all kinds that the rights include
        onOpen: () => {
          wait = 250;
          if (connected.peek() !== 'live') connected.value = 'live';
          channel?.postMessage({ type: 'open', since });
          opened();
        },
        onBytes: () => {
          lastAnswer = Date.now();
          if (channel && lastAnswer - lastAlive > 1000) {
            lastAlive = lastAnswer;
            channel.postMessage({ type: 'alive' });
          }
        },
        onEvent: ({ data }) => {
          if (!data || typeof data !== 'object') return;
          if (channel) share(data);
          take(data);
        },
      });
      if (!signal.aborted) probe(); // it ended: the node stops or goes
    } catch (err) {
      opened();
      if (own.signal.aborted && !signal.aborted) wait = 0; // other rights, or the node is back
      else if (err.missing || err.denied) retry = false; // the page polls its status
      else if (!signal.aborted) probe();
      if (!retry && connected.peek() === 'connecting') connected.value = 'live';
    }
    // Without a stream the leader keeps its turn, so that other tabs do not ask either. Other rights or another node may have one.
    await sleep(retry ? wait : forever, own.signal);
    signal.removeEventListener('abort', stop);
    wait = Math.min(Math.max(wait, 125) * 2, 4000);
    // Without locks the next turn may have begun.
    if (signal.aborted && reading === own) reading = null;
  }
}

function sleep(wait, signal) {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, wait);
    signal.addEventListener('abort', end, { once: true });
  });
}

function begin() {
  if (turn || document.hidden) return;
  turn = new AbortController();
  const { signal } = turn;
  if (!locks) {
    leading = true;
    read(signal);
    return;
  }
  channel?.postMessage({ type: 'who' });
  locks
    .request(name, { signal }, async () => {
      if (signal.aborted) return;
      leading = true;
      await read(signal);
      leading = false;
    })
    .catch(() => {}); // the place in the queue was given up
}

function end() {
  turn?.abort();
  turn = null;
  if (!locks) leading = false;
}

// A session ends by time, at the node, or with the token of its maker. Requests that only look succeed without it: the page asks.
const sessionPace = 30_000;
let sessionAt = Date.now();

let slow = 0;
function shown() {
  if (connected.peek() === 'paused') {
    connected.value = lastSeq ? 'live' : 'connecting';
    // A stream continues after the last event; before the first one there is nothing to continue after.
    if (!lastSeq) deliver({ kind: 'gap' });
  }
  flushSoon();
  lastAnswer = Date.now();
  failures = 0;
  now.value = Date.now();
  begin();
  loadStatus();
  if (Date.now() - sessionAt > sessionPace) checkSession();
  probeSoon();
  clearInterval(slow);
  slow = setInterval(() => {
    now.value = Date.now();
    if (connected.peek() === 'lost') return;
    loadStatus();
    if (Date.now() - sessionAt > sessionPace) checkSession();
  }, 10_000);
}

function checkSession() {
  sessionAt = Date.now();
  if (key()) loadSession();
}

function hidden() {
  end();
  clearInterval(slow);
  clearTimeout(probeTimer);
  clearTimeout(statusTimer);
  statusTimer = 0;
  if (connected.peek() !== 'lost') connected.value = 'paused';
}

/** start begins the live data of this tab. app.js calls it once. */
export function start() {
  document.addEventListener('visibilitychange', () => (document.hidden ? hidden() : shown()));
  // A page in the back-forward cache must not hold the lock.
  addEventListener('pagehide', end);
  addEventListener('pageshow', (event) => event.persisted && !document.hidden && shown());
  // Another tab signed in or out.
  addEventListener('storage', (event) => event.key?.startsWith('lmosd-key:') && loadSession());
  if (document.hidden) connected.value = 'paused';
  else shown();
}

// ---- Documents of views ----

/**
 * useResource loads a document: {state, data, error, reload}. state is loading, ready, denied (needs more rights), missing (no such route) or error;
 * data stays while it is loaded again or an error came. It is loaded again when the session changes, after a gap, with events of the kinds in `on`
 * for which `only` is true, at most once in `pace` ms, and each `every` ms while the page is visible. The same document is no change. A path of null
 * loads nothing; nor does a page without the rights that the document needs.
 */
export function useResource(path, { params, on: kinds, pace = 1000, every = 0, load = get, only, rights: needs = 'none' } = {}) {
  const allowed = may(needs);
  if (!allowed) path = null;
  const resource = useSignal({ state: 'loading', data: null, error: null });
  const query = JSON.stringify(params ?? null);
  const rights = session.value.rights;
  const control = useMemo(() => ({ reload: () => {}, of: '', only }), []);
  control.only = only;
  useEffect(() => {
    if (path === null) {
      if (resource.peek().data) resource.value = { state: 'loading', data: null, error: null };
      return undefined;
    }
    let controller = null; // of the request that is open
    let timer = 0;
    let due = 0;
    let again = false;
    let ended = false;
    const run = async () => {
      clearTimeout(timer);
      timer = 0;
      again = false;
      due = Date.now() + pace;
      controller?.abort();
      const own = new AbortController();
      controller = own;
      const { signal } = own;
      try {
        await ready;
        if (signal.aborted) return;
        const data = await load(path, { params: JSON.parse(query) ?? undefined, signal });
        if (signal.aborted) return;
        const before = resource.peek();
        if (before.state === 'ready' && same(before.data, data)) return;
        resource.value = { state: 'ready', data, error: null };
      } catch (err) {
        if (signal.aborted || isAbort(err)) return;
        const state = stateOf(err);
        resource.value = { state, data: state === 'error' ? resource.peek().data : null, error: err };
      } finally {
        if (controller === own) {
          controller = null;
          if (again) soon();
        }
      }
    };
    // A slow answer is awaited: if each change asked anew, none would be shown. One that does not come within 10 s is not.
    const soon = () => {
      again = controller !== null && Date.now() < due + 10_000;
      if (ended || again || timer || document.hidden) return;
      timer = setTimeout(() => {
        timer = 0;
        again = document.hidden;
        if (!again) run();
      }, Math.max(0, due - Date.now()));
    };
    control.reload = run;
    // Another document, or other rights: what the one before said must not be seen. Other parameters keep it until the answer.
    if (control.of !== `${rights} ${path}` && control.of) resource.value = { state: 'loading', data: null, error: null };
    control.of = `${rights} ${path}`;
    run();
    const off = on(kinds ?? [], (event) => {
      if (event.kind === 'gap' || !control.only || control.only(event)) soon();
    });
    const seen = () => !document.hidden && (every > 0 || kinds || again) && soon();
    document.addEventListener('visibilitychange', seen);
    const clock = every > 0 ? setInterval(() => connected.peek() !== 'lost' && soon(), every) : 0;
    return () => {
      ended = true;
      off();
      document.removeEventListener('visibilitychange', seen);
      clearInterval(clock);
      clearTimeout(timer);
      controller?.abort();
    };
  }, [path, query, rights]);
  if (!allowed) return { state: 'denied', data: null, error: null, reload: () => {} };
  return { ...resource.value, reload: () => control.reload() };
}
