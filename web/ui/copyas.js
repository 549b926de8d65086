// An interaction as a command line or as source text. Names and values come from untrusted peers: each is quoted so that it stays one word,
// and characters that a terminal acts on (escape sequences, line ends in a paste) are written as escapes.

import { shell, unsafeAll } from './steps.js';

/** literal quotes a text for JavaScript and Python: what is unsafe or not of a well-formed text is an escape. */
export function literal(value) {
  return JSON.stringify(String(value)).replace(unsafeAll, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

/** segment encodes a text as one segment of a path that no shell and no glob of curl expands. */
export function segment(value) {
  return encodeURIComponent(String(value).toWellFormed()).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}

/**
 * A Request is one interaction.
 * @typedef {{ref: string, name: string, op: 'invoke'|'read'|'write'|'observe'|'listen', input?: string, contentType?: string,
 *   variables?: [string, string][]}} Request
 *   input is JSON text, or text of contentType
 */

/** address returns the path of an interaction below the API, with its variables. */
export function address({ ref, name, op, variables = [] }) {
  const kind = op === 'invoke' ? 'actions' : op === 'listen' ? 'events' : 'properties';
  const query = variables.map(([k, v]) => `${segment(k)}=${segment(v)}`).join('&');
  return `things/${segment(ref)}/${kind}/${segment(name)}${query ? `?${query}` : ''}`;
}

const verbs = { invoke: 'call', read: 'read', write: 'write', observe: 'watch', listen: 'watch' };

/** lmosd returns the command line of lmosd. */
export function lmosd({ ref, name, op, input, contentType, variables = [] }) {
  const words = [ref, name];
  let before = '';
  if (op === 'invoke' && input !== undefined) {
    const members = contentType ? null : membersOf(input);
    if (members?.length && members.every(([k]) => /^[A-Za-z_][A-Za-z0-9_-]*$/.test(k))) {
      for (const [k, v] of members) words.push(`${k}:=${v}`);
    } else {
      before = `printf %s ${shell(input)} | `;
      words.push('-');
    }
  } else if (op === 'write') {
    before = `printf %s ${shell(input ?? '')} | `;
    words.push('-');
  }
  if (op !== 'write') for (const [k, v] of variables) words.push(`${k}=${v}`);
  // Without "--" a name that begins with "-" would be an option.
  const dashed = words.some((w) => w.length > 1 && w.startsWith('-'));
  const options = contentType ? ['--content-type', contentType] : [];
  return `${before}lmosd ${[verbs[op], ...options, ...(dashed ? ['--'] : []), ...words].map(shell).join(' ')}`;
}

// membersOf returns the members of an object as [name, JSON text]. It returns null if JavaScript would change something: digits of a long
// number, or a name that occurs twice.
function membersOf(input) {
  try {
    const v = JSON.parse(input);
    if (typeof v !== 'object' || v === null || Array.isArray(v) || JSON.stringify(v) !== input) return null;
    return Object.entries(v).map(([k, one]) => [k, JSON.stringify(one)]);
  } catch {
    return null;
  }
}

const method = { invoke: 'POST', read: 'GET', write: 'PUT', observe: 'GET', listen: 'GET' };
const streamed = (op) => op === 'observe' || op === 'listen';

/** curl returns the command line of curl. base is the address of the API, with / at its end. */
export function curl(request, base) {
  const { op, input, contentType } = request;
  const words = ['curl', '-sS'];
  if (streamed(op)) words.push('-N', '-H', 'Accept: text/event-stream');
  if (op === 'invoke') words.push('-N', '-H', 'Accept: application/x-ndjson');
  if (op === 'invoke' && input === undefined) words.push('-X', 'POST');
  if (op === 'write') words.push('-X', 'PUT');
  // --data-raw: --data takes "@file" for the name of a file.
  if (input !== undefined && !streamed(op) && op !== 'read') words.push('-H', `Content-Type: ${contentType || 'application/json'}`, '--data-raw', input);
  return [...words, base + address(request)].map(shell).join(' ');
}

// partsOf returns the headers of a request, as members of an object of JavaScript and of Python, and whether it has a body.
function partsOf({ op, input, contentType }) {
  const body = input !== undefined && (op === 'invoke' || op === 'write');
  const headers = [['Accept', streamed(op) ? 'text/event-stream' : op === 'invoke' ? 'application/x-ndjson' : 'application/json']];
  if (body) headers.unshift(['Content-Type', contentType || 'application/json']);
  return { body, headers: headers.map(([k, v]) => `${literal(k)}: ${literal(v)}`).join(', ') };
}

/** python returns source text for Python 3 and its standard library. */
export function python(request, base) {
  const { op, input } = request;
  const { body, headers } = partsOf(request);
  return [
    'import urllib.request',
    '',
    'request = urllib.request.Request(',
    `    ${literal(base + address(request))},`,
    `    method=${literal(method[op])},`,
    ...(body ? [`    data=${literal(input)}.encode(),`] : []),
    `    headers={${headers}},`,
    ')',
    'with urllib.request.urlopen(request) as response:',
    '    for line in response:',
    '        print(line.decode(), end="")',
  ].join('\n');
}

/** javascript returns source text of an ES module, for Node.js and browsers. */
export function javascript(request, base) {
  const { op, input } = request;
  const { body, headers } = partsOf(request);
  return [
    `const response = await fetch(${literal(base + address(request))}, {`,
    `  method: ${literal(method[op])},`,
    `  headers: { ${headers} },`,
    ...(body ? [`  body: ${literal(input)},`] : []),
    '});',
    'for await (const part of response.body.pipeThrough(new TextDecoderStream())) {',
    '  console.log(part);',
    '}',
  ].join('\n');
}
