// Steps of errors and warnings as command lines of lmosd. docs/api.md#errors lists their kinds.
import { clean } from './words.js';

// The command, the number of its positional arguments, and what stands for one that is missing. Further arguments are names and values of flags.
const verbs = {
  show: ['show', 1], find: ['find', 1], read: ['read', 2], write: ['write', 3, 'VALUE'], tasks: ['task ls', 0], status: ['status', 0], run: ['run', 0],
  config: ['config describe', 0], id: ['id', 0], peers: ['peers', 0], connect: ['peers connect', 1, 'ADDR'], expose: ['expose', 1, 'TARGET'],
  publish: ['publish', 1, 'FILE'], validate: ['validate', 1, 'FILE'], login: ['login', 1], policy: ['policy', 2], help: ['help', 1],
  'org-init': ['org init', 1, 'DOMAIN'], 'org-join': ['org join', 1, 'INVITATION'], 'org-leave': ['org leave', 0], accept: ['trust accept', 1, 'INVITATION'],
  console: ['console', 0], confirm: ['trust confirm', 1, 'PARTNER'], hosting: ['hosting', 2],
};

// A step of another node chooses no program, file or rule of this host.
const notRemote = ['console', 'run', 'expose', 'policy', 'config', 'status'];

// Control characters, and those that change the direction of text or are invisible: a copied line must be what it looks like.
const unsafe = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/u;
export const unsafeAll = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/gu;

/**
 * shell quotes a text as one word of bash, zsh and POSIX shells; with control characters, of bash, zsh and ksh ($'…'). A NUL cannot be in an
 * argument and is left out.
 */
export function shell(value) {
  const word = String(value).replaceAll('\0', '').toWellFormed();
  if (/^[A-Za-z0-9_./:@%+=-]+$/.test(word) && !word.startsWith('=')) return word;
  if (!unsafe.test(word)) return `'${word.replaceAll("'", `'\\''`)}'`;
  // Bytes in octal: \u depends on the locale of the shell, and \x may take the digits that follow.
  const out = word.replaceAll('\\', '\\\\').replaceAll("'", "\\'").replace(unsafeAll, (c) =>
    [...new TextEncoder().encode(c)].map((b) => `\\${b.toString(8).padStart(3, '0')}`).join(''));
  return `$'${out}'`;
}

/**
 * commands returns the command lines of steps; kinds that it does not know, and options of the same request, have none.
 * @param {{kind: string, args?: string[]}[]|undefined} next
 * @param {boolean} [remote]  the steps come from another node
 */
export function commands(next, remote = false) {
  if (!Array.isArray(next)) return [];
  const lines = [];
  for (const { kind, args = [] } of next.slice(0, 4)) {
    if (!Object.hasOwn(verbs, kind) || (remote && notRemote.includes(kind))) continue;
    const [verb, count, blank] = verbs[kind];
    const quoted = args.map((arg) => shell(clean(arg, 256)));
    const named = quoted.slice(0, count);
    if (blank && named.length < count) named.push(blank);
    const words = ['lmosd', verb, ...(named.some((arg) => arg.startsWith('-')) ? ['--'] : []), ...named];
    if (!remote) {
      quoted.slice(count).forEach((arg, i) => words.push(i % 2 === 0 && kind !== 'config' && kind !== 'login' ? `--${arg}` : arg));
    }
    lines.push(words.join(' '));
  }
  return lines;
}
