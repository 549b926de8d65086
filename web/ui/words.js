// Words of the page: texts by their English form, which texts.js lists, and numbers, times and plurals by Intl.

// Plurals: 'peer' -> forms by category of Intl.PluralRules. Without an entry the plural of a word is the word with an s.
const PLURALS = {
  'address': { one: '{n} address', other: '{n} addresses' },
  'entry': { one: '{n} entry', other: '{n} entries' },
  'query': { one: '{n} query', other: '{n} queries' },
  'property': { one: '{n} property', other: '{n} properties' },
};

/** lang is the language of the words. */
export const lang = 'en';

// English with days before months and hours to 23 is read alike everywhere.
const locale = 'en-GB';

/**
 * translations replaces texts, by their English form. English has none, so that the page does not load texts.js: another language is a
 * module with the same keys, loaded before the first view.
 */
const translations = Object.create(null);

/** t returns the text in the language of the page, with {name} replaced from params. Each text stands in texts.js. */
export function t(text, params) {
  const said = translations[text] || text;
  return params ? said.replace(/\{(\w+)\}/g, (whole, name) => (name in params ? String(params[name]) : whole)) : said;
}

const rules = new Intl.PluralRules(lang);

/** plural returns "1 peer" or "3 peers": the number by Intl, the form by its plural category. */
export function plural(n, word) {
  const forms = PLURALS[word];
  const category = rules.select(n);
  if (forms) return (forms[category] ?? forms.other).replace('{n}', num(n));
  return `${num(n)} ${category === 'one' ? word : `${word}s`}`;
}

const whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
const fine = new Intl.NumberFormat(locale, { maximumSignificantDigits: 3 });
const small = new Intl.NumberFormat(locale, { maximumSignificantDigits: 2 });
const share = new Intl.NumberFormat(locale, { style: 'percent', maximumFractionDigits: 0 });

const known = (n) => typeof n === 'number' && Number.isFinite(n);

/** num returns a number for people, with at most one digit after the point; – if it is unknown. */
export function num(n) {
  if (!known(n)) return '–';
  return (Number.isInteger(n) || Math.abs(n) >= 100 ? whole : tenth).format(n);
}

/** percent returns a fraction (0 to 1) as a percentage. */
export function percent(n) {
  return known(n) ? share.format(n) : '–';
}

/** ms returns a duration in milliseconds: "0.4 ms", "15 ms", "2.04 s", "3 min". */
export function ms(n) {
  if (!known(n)) return '–';
  if (n < 1000) return `${n === 0 ? '0' : (n < 1 ? small : fine).format(n)} ms`;
  if (n < 60_000) return `${fine.format(n / 1000)} s`;
  return dur(n / 1000);
}

/** dur returns a duration in seconds by its two largest units: "4 d 2 h", "12 min", "8 s". */
export function dur(s) {
  if (!known(s)) return '–';
  const total = Math.max(0, Math.floor(s));
  const parts = [[Math.floor(total / 86400), 'd'], [Math.floor(total / 3600) % 24, 'h'], [Math.floor(total / 60) % 60, 'min'], [total % 60, 's']];
  const first = parts.findIndex(([n]) => n > 0);
  if (first < 0) return '0 s';
  return parts.slice(first, first + 2).filter(([n], i) => n > 0 && (first + i < 3 || first >= 2)).map(([n, unit]) => `${n} ${unit}`).join(' ');
}

const units = ['B', 'kB', 'MB', 'GB', 'TB'];

/** bytes returns a size in decimal units: "812 B", "1.4 MB". */
export function bytes(n) {
  if (!known(n)) return '–';
  let unit = 0;
  let value = n;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${num(unit === 0 ? value : Math.round(value * 10) / 10)} ${units[unit]}`;
}

const relative = new Intl.RelativeTimeFormat(locale, { numeric: 'always', style: 'narrow' });
const clock = new Intl.DateTimeFormat(locale, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });
const day = new Intl.DateTimeFormat(locale, { day: 'numeric', month: 'short' });
const full = new Intl.DateTimeFormat(locale, { dateStyle: 'medium', timeStyle: 'medium', hourCycle: 'h23' });

/** date parses what the API sends; null if it is absent, not a time, or the zero time of Go. */
export function date(value) {
  if (value === undefined || value === null || value === '') return null;
  const d = value instanceof Date ? value : new Date(value);
  return Number.isNaN(d.getTime()) || d.getUTCFullYear() < 1970 ? null : d;
}

/** ago returns how long a time is past or ahead: "now", "12s ago", "in 3 min". */
export function ago(value, now = Date.now()) {
  const d = date(value);
  if (!d) return t('never');
  const s = (d.getTime() - now) / 1000;
  const size = Math.abs(s);
  if (size < 2) return t('now');
  if (size < 60) return relative.format(Math.trunc(s), 'second');
  if (size < 3600) return relative.format(Math.trunc(s / 60), 'minute');
  if (size < 86_400) return relative.format(Math.trunc(s / 3600), 'hour');
  return relative.format(Math.trunc(s / 86_400), 'day');
}

/** time returns the time of day, with the date if it is another day. */
export function time(value) {
  const d = date(value);
  if (!d) return '–';
  const today = new Date().toDateString() === d.toDateString();
  return today ? clock.format(d) : `${day.format(d)} ${clock.format(d)}`;
}

/** at returns the date and time in full. */
export function at(value) {
  const d = date(value);
  return d ? full.format(d) : '–';
}

// Bidirectional controls, other controls and the invisible characters can make a text look like another one.
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;

/** clean returns a text of an agent that is safe to show: without controls of direction, cut to max characters. */
export function clean(text, max = 300) {
  if (text === undefined || text === null) return '';
  const s = typeof text === 'string' ? text : String(text);
  // Cut before the search: a text of 100 MB must not hold the page.
  const short = (s.length > max * 2 ? s.slice(0, max * 2) : s).replace(hidden, '');
  if (short.length <= max && s.length <= max * 2) return short;
  const points = [...short];
  return points.length > max || s.length > max * 2 ? `${points.slice(0, max - 1).join('')}…` : short;
}

/** link returns an address if it may be opened: https only, '' for everything else. */
export function link(address) {
  try {
    const u = new URL(String(address));
    return u.protocol === 'https:' && !u.username ? u.href : '';
  } catch {
    return '';
  }
}

/** thingName returns the name of an agent, or the name at the end of its id: "weather". */
export function thingName(value) {
  return clean(value, 300).replace(/^urn:lmos:did:\w+:[^:|]+:/, '').replace(/\|.*$/, '').slice(0, 80);
}

/** shortDID returns a DID for a list: "did:key:z6Mk…x4Qf". */
export function shortDID(value) {
  const s = clean(value, 400);
  const match = /^(did:[a-z0-9]+:)(.+)$/.exec(s);
  if (!match) return s.length > 28 ? `${s.slice(0, 16)}…${s.slice(-6)}` : s;
  const [, method, id] = match;
  return id.length <= 16 ? s : `${method}${id.slice(0, 4)}…${id.slice(-6)}`;
}
