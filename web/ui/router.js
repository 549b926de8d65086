// Hash routes: references contain '/' and ':', and the page may lie below any prefix.
import { signal } from './vendor/preact.js';

/**
 * A Route is the address after '#/': `#/agents/REF?x=y` is {name: 'agent', ref: REF, query: URLSearchParams}.
 * @typedef {{name: string, ref: string, query: URLSearchParams, hash: string}} Route
 */

/** parse returns the Route of a hash. */
export function parse(hash) {
  const text = hash.replace(/^#\/?/, '');
  const mark = text.indexOf('?');
  const path = mark < 0 ? text : text.slice(0, mark);
  const slash = path.indexOf('/');
  const first = slash < 0 ? path : path.slice(0, slash);
  let ref = slash < 0 ? '' : path.slice(slash + 1);
  try {
    ref = decodeURIComponent(ref);
  } catch {
    // Not encoded: a person typed it.
  }
  const name = first === 'agents' || first === 'agent' ? (ref ? 'agent' : 'agents') : first || 'overview';
  return { name, ref, query: new URLSearchParams(mark < 0 ? '' : text.slice(mark + 1)), hash };
}

/** route is the Route of now. */
export const route = signal(parse(location.hash));

addEventListener('hashchange', () => {
  if (location.hash !== route.value.hash) route.value = parse(location.hash);
});

/**
 * href returns the address of a view: href('agents', ref, {tab: 'td'}). The name of the view of one agent is agents, too.
 * query: undefined, null and '' are left out
 */
export function href(name, ref, query) {
  const first = name === 'agent' ? 'agents' : name;
  let text = first === 'overview' && !ref ? '#/' : `#/${first}`;
  // ':' and '/' stay readable; '?', '#' and '%' are encoded.
  if (ref) text += `/${encodeURIComponent(ref).replace(/%3A/g, ':').replace(/%2F/g, '/').replace(/%7C/g, '|')}`;
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== '') params.set(key, String(value));
  }
  const tail = params.toString();
  return tail ? `${text}?${tail}` : text;
}

/** go opens the view at an address of href. replace: without an entry in the history, for filters. */
export function go(address, { replace = false } = {}) {
  if (address === location.hash) return;
  if (replace) {
    history.replaceState(null, '', address);
    route.value = parse(address);
  } else {
    location.hash = address;
  }
}
