// The last events of the node, kept once for all views: what GET /v1/events lists, and then what the live stream brings.
import { signal, useEffect } from './vendor/preact.js';
import { get } from './api.js';
import { on, ready, session, stateOf } from './state.js';

/** most is the number of events that the page keeps. */
export const most = 1000;

/** recent has the last events, newest first: at most `most`. state: loading, ready, denied, missing or error. */
export const recent = signal({ state: 'loading', items: [], error: null });

let begun = false;
let rights = '';
let waiting = [];
let timer = 0;
// A change is shown within 100 ms. What comes faster than a person can read is shown twice a second: new rows are what costs.
const pace = 80;
const slowPace = 500;
const many = 100; // in one pace
let busyUntil = 0;

function publish() {
  timer = 0;
  const items = [...waiting.reverse(), ...recent.peek().items];
  waiting = [];
  if (items.length > most) items.length = most;
  recent.value = { ...recent.peek(), items };
}

async function load() {
  const asked = rights;
  try {
    await ready;
    const { items } = await get('v1/events', { params: { limit: most } });
    if (asked !== rights) return;
    const list = items.filter((event) => event.kind !== 'gap').sort((a, b) => b.seq - a.seq);
    const last = list[0]?.seq ?? 0;
    const newer = [...waiting.reverse(), ...recent.peek().items].filter((event) => event.seq > last);
    waiting = [];
    recent.value = { state: 'ready', items: [...newer, ...list].slice(0, most), error: null };
  } catch (error) {
    if (asked !== rights) return;
    if (error.status === 0 && recent.peek().state === 'ready') return; // the frame says that the node is lost
    recent.value = { ...recent.peek(), state: stateOf(error), error };
  }
}

function begin() {
  begun = true;
  on('*', (event) => {
    if (event.kind === 'gap') {
      load();
      return;
    }
    waiting.push(event);
    if (waiting.length > most) waiting.shift();
    if (waiting.length > many) busyUntil = Date.now() + 2 * slowPace;
    if (!timer) timer = setTimeout(publish, Date.now() < busyUntil ? slowPace : pace);
  });
  session.subscribe((s) => {
    if (s.rights === rights) return;
    // What other rights have seen must not be seen.
    rights = s.rights;
    waiting = [];
    recent.value = { state: 'loading', items: [], error: null };
    load();
  });
}

/** useRecent returns recent, and begins to keep it. */
export function useRecent() {
  useEffect(() => {
    if (!begun) begin();
  }, []);
  return recent.value;
}

/** reloadRecent asks for the list again. */
export const reloadRecent = load;
