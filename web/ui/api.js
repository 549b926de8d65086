// The client of the HTTP API of the node. All addresses are relative to the page, so that any path prefix of a proxy works.

/** The address of the API: the parent of the folder of the page. */
export const base = new URL('../', location.href.split('#')[0]);

// localStorage is bound to the origin; the path keeps two nodes behind one proxy apart.
const KEY = `lmosd-key:${location.pathname}`;

// Without storage the session lives in this tab only.
let memory = '';

function stored() {
  try {
    return localStorage.getItem(KEY) ?? '';
  } catch {
    return memory;
  }
}

/** key returns the key of the session, or ''. It is worth nothing without the cookie. */
export const key = () => stored().split(' ')[1] ?? '';

/** keyRights returns the rights that the key had when it was stored, or 'none': what the page assumes until the node has answered. */
export const keyRights = () => stored().split(' ')[0] || 'none';

/** setKey stores the key of the session and its rights; '' removes it. */
export function setKey(value, rights = '') {
  memory = value ? `${rights} ${value}` : '';
  try {
    if (value) localStorage.setItem(KEY, memory);
    else localStorage.removeItem(KEY);
  } catch {
    // Storage is off.
  }
}

/** hooks are set by state.js: it learns from each request whether the node answers and the session holds. */
export const hooks = {
  reached: () => {},
  refused: () => {},
};

/** A Problem is a failed request: RFC 9457 as the node sends it, or status 0 if the node did not answer. */
export class Problem extends Error {
  constructor(p) {
    // A proxy, or the host of an agent, may send any type.
    const text = (v) => (typeof v === 'string' ? v : '');
    super(text(p.detail) || text(p.title) || `HTTP ${p.status}`);
    this.name = 'Problem';
    this.code = text(p.code);
    this.title = text(p.title);
    this.detail = text(p.detail);
    this.hint = text(p.hint);
    this.status = p.status ?? 0;
    this.errors = Array.isArray(p.validationErrors) ? p.validationErrors : [];
    this.next = Array.isArray(p.next) ? p.next : [];
    this.remote = Boolean(p.remote);
  }
  /** denied is true if the request needs more rights than the page has. */
  get denied() {
    return this.status === 401 || this.status === 403;
  }
  /** missing is true if this node has no such route. */
  get missing() {
    return this.status === 404 && (this.code === '' || (this.code === 'LMOS-1405' && this.detail.startsWith('nothing is served')));
  }
}

/** isAbort is true for the error of a request that the page itself ended. */
export function isAbort(err) {
  return err?.name === 'AbortError';
}

/**
 * url returns the address of a path of the API ("v1/status"), with query parameters; null, undefined and '' are left out.
 * An array repeats the parameter.
 */
export function url(path, params) {
  const u = new URL(path.replace(/^\/+/, ''), base);
  for (const [name, value] of Object.entries(params ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== '') u.searchParams.append(name, String(one));
    }
  }
  return u;
}

/** seg encodes a reference as one segment of a path. */
export const seg = encodeURIComponent;

/**
 * request sends a request and returns the Response; a failure is a Problem. The body of a string, Blob or typed array is sent as it
 * is, anything else but undefined as JSON.
 * @param {{method?: string, body?: any, params?: object, headers?: object, signal?: AbortSignal, quiet?: boolean}} [options]
 *   quiet: a failure does not change the state of the page
 */
export async function request(path, { method = 'GET', body, params, headers, signal, quiet } = {}) {
  const head = new Headers({ Accept: 'application/json', ...headers });
  const k = key();
  if (k) head.set('Lmos-Session', k);
  let payload = body;
  if (body !== undefined && typeof body !== 'string' && !(body instanceof Blob) && !ArrayBuffer.isView(body)) payload = JSON.stringify(body);
  if (payload !== undefined && !head.has('Content-Type')) head.set('Content-Type', 'application/json');
  let response;
  try {
    response = await fetch(url(path, params), { method, headers: head, body: payload, signal, credentials: 'same-origin', redirect: 'error', cache: 'no-store' });
  } catch (err) {
    if (signal?.aborted) throw err;
    if (!quiet) hooks.reached(false);
    throw new Problem({ status: 0, title: 'No answer', detail: 'The node does not answer.' });
  }
  if (!quiet) hooks.reached(true);
  if (response.ok) return response;
  if (response.status === 401 && k && !quiet) hooks.refused();
  throw await problem(response);
}

async function problem(response) {
  let p = {};
  try {
    p = JSON.parse((await response.text()).slice(0, 1 << 20));
  } catch {
    // Not JSON: a proxy answered.
  }
  return new Problem({ title: response.statusText, ...(p && typeof p === 'object' ? p : {}), status: response.status });
}

/** get returns the JSON document of a path, or throws a Problem. */
export async function get(path, options) {
  const response = await request(path, options);
  return response.status === 204 ? null : response.json();
}

/**
 * send changes something: it returns {body, headers, status}, body being the parsed JSON, text for other types, or null.
 * The options are those of request.
 */
export async function send(method, path, body, options) {
  const response = await request(path, { ...options, method, body });
  const text = response.status === 204 ? '' : await response.text();
  const json = (response.headers.get('Content-Type') ?? '').includes('json');
  return { body: text === '' ? null : json ? JSON.parse(text) : text, headers: response.headers, status: response.status };
}

// A line or an event without an end must not fill the memory.
const maxLine = 8 << 20;
const tooLong = () => new Problem({ status: 502, title: 'Line too long', detail: 'The answer has a line or an event of more than 8 MiB.' });

/** lines yields the lines of a response body as they arrive, without their ends. */
export async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      rest += value;
      let start = 0;
      for (let end; (end = rest.indexOf('\n', start)) >= 0; start = end + 1) {
        yield rest.slice(start, rest[end - 1] === '\r' && end > start ? end - 1 : end);
      }
      rest = rest.slice(start);
      if (rest.length > maxLine) throw tooLong();
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * stream reads server-sent events until they end, and throws if they break off. EventSource has no headers and no status.
 * @param {{signal?: AbortSignal, params?: object, headers?: object, method?: string, body?: any, quiet?: boolean,
 *   onOpen?: (response: Response) => void, onBytes?: () => void,
 *   onEvent: (event: {id: string, event: string, data: any}) => void}} options  data is parsed JSON, or the text if it is none
 */
export async function stream(path, { onEvent, onOpen, onBytes, headers, ...options }) {
  const response = await request(path, { ...options, headers: { ...headers, Accept: 'text/event-stream' } });
  onOpen?.(response);
  let id = '';
  let event = '';
  let data = null;
  for await (const line of lines(response)) {
    onBytes?.();
    if (line === '') {
      if (data !== null) onEvent({ id, event: event || 'message', data: parse(data) });
      event = '';
      data = null;
      continue;
    }
    const colon = line.indexOf(':');
    if (colon === 0) continue;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
    if (field === 'data') {
      data = data === null ? value : `${data}\n${value}`;
      if (data.length > maxLine) throw tooLong();
    } else if (field === 'event') event = value;
    else if (field === 'id') id = value;
  }
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
