// The components that all views share.
import { html, useEffect, useId, useLayoutEffect, useRef, useState, signal } from './vendor/preact.js';
import { may, now, session, status } from './state.js';
import { route } from './router.js';
import { commands, shell } from './steps.js';
import { ago, at, clean, date, shortDID, t } from './words.js';

/** cx joins the class names that are not empty. */
export const cx = (...names) => names.filter(Boolean).join(' ');

// ---- Icons ----

// Strokes of 24 × 24, drawn with the color of the text.
const paths = {
  overview: 'M3 12h4l3 8 4-16 3 8h4',
  ask: 'M6 5h12a2 2 0 0 1 2 2v8a2 2 0 0 1-2 2h-6l-4.5 3.5V17H6a2 2 0 0 1-2-2V7a2 2 0 0 1 2-2M10 9.4a2 2 0 1 1 2.8 1.8c-.5.3-.8.6-.8 1.1M12 14.2v.1',
  mesh: 'M12 5m-2 0a2 2 0 1 0 4 0 2 2 0 1 0-4 0M5 18m-2 0a2 2 0 1 0 4 0 2 2 0 1 0-4 0M19 18m-2 0a2 2 0 1 0 4 0 2 2 0 1 0-4 0M11 6.8 6 16.2M13 6.8l5 9.4M7 18h10',
  agents: 'M7 9h10a2 2 0 0 1 2 2v6a2 2 0 0 1-2 2H7a2 2 0 0 1-2-2v-6a2 2 0 0 1 2-2M12 9V5M12 4v.1M9 13.5v1M15 13.5v1',
  calls: 'M4 8h13l-3-3M20 16H7l3 3',
  events: 'M4 6h16M4 12h10M4 18h13',
  tasks: 'M4 6.5 5.5 8 8 5M4 12.5 5.5 14 8 11M4 18.5 5.5 20 8 17M11.5 6.5H20M11.5 12.5H20M11.5 18.5H20',
  trust: 'M12 3l7 3v5c0 4.6-3 8.2-7 10-4-1.8-7-5.4-7-10V6zM9 11.8l2.2 2.2 4-4.2',
  network: 'M12 20v-.1M8.5 16a5 5 0 0 1 7 0M5.5 12.6a9.3 9.3 0 0 1 13 0M2.6 9.2a13.5 13.5 0 0 1 18.8 0',
  node: 'M5 4h14a1 1 0 0 1 1 1v5a1 1 0 0 1-1 1H5a1 1 0 0 1-1-1V5a1 1 0 0 1 1-1M5 13h14a1 1 0 0 1 1 1v5a1 1 0 0 1-1 1H5a1 1 0 0 1-1-1v-5a1 1 0 0 1 1-1M7.5 7.5v.1M7.5 16.5v.1M11 7.5h5M11 16.5h5',
  more: 'M4.5 12a1 1 0 1 0 2 0 1 1 0 1 0-2 0M11 12a1 1 0 1 0 2 0 1 1 0 1 0-2 0M17.5 12a1 1 0 1 0 2 0 1 1 0 1 0-2 0',
  search: 'M10.5 4a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13M15.5 15.5 20 20',
  copy: 'M9 8h9a1 1 0 0 1 1 1v10a1 1 0 0 1-1 1H9a1 1 0 0 1-1-1V9a1 1 0 0 1 1-1M5 15.5V5.5A1.5 1.5 0 0 1 6.5 4H15',
  check: 'M5 12.5l4.5 4.5L19 7.5',
  warning: 'M12 4 2.8 19.5h18.4zM12 10v4.5M12 17v.1',
  info: 'M12 3.5a8.5 8.5 0 1 1 0 17 8.5 8.5 0 0 1 0-17M12 11v5M12 8v.1',
  close: 'M6 6l12 12M18 6 6 18',
  lock: 'M6.5 11h11a1 1 0 0 1 1 1v7a1 1 0 0 1-1 1h-11a1 1 0 0 1-1-1v-7a1 1 0 0 1 1-1M8.5 11V8a3.5 3.5 0 0 1 7 0v3',
  key: 'M8 11.5a4 4 0 1 1 0 8 4 4 0 0 1 0-8M11 13 19.5 4.5M16 8l2.5 2.5',
  pause: 'M9 5v14M15 5v14',
  play: 'M7 5l12 7-12 7z',
  open: 'M9 6l6 6-6 6',
  down: 'M6 9l6 6 6-6',
  reload: 'M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4',
};

/** Icon draws a symbol; it is decoration, the text beside it or the label of the button has the meaning. */
export function Icon({ name, size = 20 }) {
  return html`<svg class="icon" width=${size} height=${size} viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.7"
    stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false"><path d=${paths[name] ?? paths.info} /></svg>`;
}

// ---- Headings and announcements ----

/**
 * Heading is the one h1 of a view. It gets the focus when the route changes, so that a screen reader begins there.
 * children: buttons and switches at the end of the line.
 */
export function Heading({ title, sub, children }) {
  const ref = useRef(null);
  useLayoutEffect(() => {
    if (moved.value) {
      moved.value = false;
      ref.current?.focus({ preventScroll: true });
    }
  }, []);
  useEffect(() => {
    document.title = `${title} · ${t('lmosd console')}`;
  }, [title]);
  return html`<header class="heading">
    <div class="heading-text"><h1 ref=${ref} tabindex="-1">${title}</h1>${sub && html`<p class="sub">${sub}</p>`}</div>
    ${children && html`<div class="actions">${children}</div>`}
  </header>`;
}

// moved is true from a change of the route until the heading of the new view has the focus. The first page takes no focus.
const moved = { value: false };
{
  let before = route.peek();
  route.subscribe((next) => {
    if (next.name !== before.name || next.ref !== before.ref) moved.value = true;
    before = next;
  });
}

/** announcement is the text of the live region of the page. */
export const announcement = signal('');

/** announce says a text to screen readers. */
export function announce(text) {
  announcement.value = '';
  setTimeout(() => (announcement.value = text), 50);
}

// ---- Small parts ----

/** Badge is a short word with a tone: good, warn, bad, info, accent or none. */
export function Badge({ tone = '', title, children, testid }) {
  return html`<span class=${cx('badge', tone)} title=${title} data-testid=${testid}>${children}</span>`;
}

/** Dot is a colored dot before a text that says the same. */
export function Dot({ tone = '' }) {
  return html`<span class=${cx('dot', tone)} aria-hidden="true"></span>`;
}

/** Button: kind is primary, danger, quiet or ''. busy shows that it works. */
export function Button({ kind = '', icon, busy, disabled, label, children, ...rest }) {
  return html`<button type="button" class=${cx('button', kind, icon && !children && 'square')} disabled=${disabled || busy} aria-busy=${busy ? 'true' : undefined}
    aria-label=${label} title=${label} ...${rest}>${icon && html`<${Icon} name=${icon} size=${18} />`}${children}</button>`;
}

/** copyText copies a text; without a secure context by a selection. It returns whether that worked. */
export async function copyText(text) {
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
  } catch {
    // No permission: the selection may work.
  }
  const area = document.createElement('textarea');
  area.value = text;
  area.className = 'visually-hidden';
  // Below a modal dialog nothing can be selected.
  const focused = document.activeElement;
  (focused?.closest('dialog') ?? document.body).append(area);
  area.select();
  const ok = document.execCommand('copy');
  area.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return ok;
}

/** Copy is a button that copies a text. label: what the text is, for its name. */
export function Copy({ text, label }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return undefined;
    const timer = setTimeout(() => setDone(false), 1600);
    return () => clearTimeout(timer);
  }, [done]);
  const click = async () => {
    if (await copyText(text)) {
      setDone(true);
      announce(t('Copied'));
    }
  };
  return html`<button type="button" class=${cx('copy', done && 'done')} onClick=${click} aria-label=${t('Copy “{text}”', { text: clean(label ?? text, 60) })} title=${t('Copy')}>
    <${Icon} name=${done ? 'check' : 'copy'} size=${16} /></button>`;
}

/** Command is a command line that can be copied. */
export function Command({ text }) {
  return html`<span class="command"><code tabindex="0">${text}</code><${Copy} text=${text} /></span>`;
}

/** ID is an id in full, or a DID cut in its middle, with a button to copy it. */
export function ID({ value, short = true, copy = true }) {
  const full = clean(value, 400);
  return html`<span class="id"><code title=${full}>${short ? shortDID(full) : full}</code>${copy && html`<${Copy} text=${full} />`}</span>`;
}

/** Ago is a time as its distance from now, with the full time in its title. */
export function Ago({ value }) {
  const d = date(value);
  if (!d) return html`<span>${t('never')}</span>`;
  const shared = Math.max(now.value, Date.now() - 10_000);
  // The shared clock may be older than what happened just now.
  const base = d.getTime() <= Date.now() + 1000 ? Math.max(shared, d.getTime()) : shared;
  return html`<time datetime=${d.toISOString()} title=${at(d)}>${ago(d, base)}</time>`;
}

/** Card is a part of a view with a title of level 2. */
export function Card({ title, sub, actions, children, tone = '', testid, flush }) {
  const id = useId();
  return html`<section class=${cx('card', tone, flush && 'flush')} aria-labelledby=${title ? id : undefined} data-testid=${testid}>
    ${title && html`<div class="card-head"><h2 id=${id}>${title}</h2>${sub && html`<span class="sub">${sub}</span>`}${actions && html`<div class="actions">${actions}</div>`}</div>`}
    ${children}
  </section>`;
}

/** Facts is a list of names and values: items are [name, value] pairs; pairs with an empty value are left out. */
export function Facts({ items }) {
  return html`<dl class="facts">${items
    .filter((item) => item && item[1] !== undefined && item[1] !== null && item[1] !== '' && item[1] !== false)
    .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Field is a labeled control: children is a function of {id, describedBy, invalid} that returns the control. */
export function Field({ label, hint, error, required, children, hideLabel, testid }) {
  const id = useId();
  const described = cx(hint && `${id}-hint`, error && `${id}-error`) || undefined;
  return html`<div class=${cx('field', error && 'invalid')} data-testid=${testid}>
    <label for=${id} class=${hideLabel ? 'visually-hidden' : undefined}>${label}${required && html`<span class="required" aria-hidden="true"> *</span>`}</label>
    ${children({ id, describedBy: described, invalid: error ? 'true' : undefined })}
    ${hint && html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
    ${error && html`<p class="error" id=${`${id}-error`}>${error}</p>`}
  </div>`;
}

/** SearchField is a filter without a visible label. It takes the properties of the input. */
export function SearchField({ label, testid, ...rest }) {
  return html`<${Field} label=${label} hideLabel>${({ id }) => html`<input id=${id} type="search" placeholder=${label} autocomplete="off" spellcheck=${false} data-testid=${testid} ...${rest} />`}</${Field}>`;
}

/** Segments is a switch between a few values: options are [value, text] pairs. */
export function Segments({ label, value, options, onChange, testid }) {
  return html`<div class="segments" role="group" aria-label=${label} data-testid=${testid}>
    ${options.map(([option, text]) => html`<button type="button" key=${option} aria-pressed=${option === value ? 'true' : 'false'} onClick=${() => onChange(option)}>${text}</button>`)}
  </div>`;
}

/** Dialog is a modal dialog, open while it is rendered. Escape and a click beside it call onClose. */
export function Dialog({ title, hideTitle, onClose, children, kind = '', testid }) {
  const ref = useRef(null);
  const id = useId();
  useLayoutEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    dialog.showModal();
    return () => {
      dialog.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return html`<dialog ref=${ref} class=${cx('dialog', kind)} aria-labelledby=${id} data-testid=${testid}
    onCancel=${(event) => { event.preventDefault(); onClose(); }} onMouseDown=${(event) => event.target === ref.current && onClose()}>
    <div class="dialog-body">
      <div class=${cx('dialog-head', hideTitle && 'visually-hidden')}><h2 id=${id}>${title}</h2>
        ${!hideTitle && html`<${Button} kind="quiet" icon="close" label=${t('Close')} onClick=${onClose} />`}</div>
      ${children}
    </div>
  </dialog>`;
}

/** Steps shows what can help after an error or a warning (Problem.next, Warning.next), as commands. */
export function Steps({ next, remote }) {
  const lines = commands(next, remote);
  return lines.length > 0 && html`<div class="stack tight steps">${lines.map((text) => html`<${Command} key=${text} text=${text} />`)}</div>`;
}

// ---- States ----

/** consoleCommand returns the command that opens this page with a session. A node with a folder of its own needs its name. */
export function consoleCommand(rights = 'admin') {
  const dir = status.value?.data_dir ?? '';
  return `lmosd console${rights === 'admin' ? '' : ` --rights ${rights}`}${dir && !/[/\\]lmosd$/.test(dir) ? ` --data-dir ${shell(dir)}` : ''}`;
}

/** SignIn says how this page gets more rights. */
export function SignIn({ rights = 'admin' }) {
  const text = consoleCommand(rights);
  return html`<div class="signin" data-testid="sign-in"><p>${t('Run this command on the host of the node. It opens this page with a session.')}</p><${Command} text=${text} /></div>`;
}

/** Failure shows a Problem: title, code, detail, hint and what can be tried. */
export function Failure({ error, onRetry }) {
  const title = error?.status === 0 ? t('The node does not answer.') : clean(error?.title, 120) || t('Something went wrong');
  const detail = error?.status === 0 ? '' : error?.missing ? t('This node has no such route: it may be older than this page.') : clean(error?.detail || error?.message, 600);
  return html`<div class="failure" role="alert">
    <p class="failure-title"><${Icon} name="warning" />${title} ${error?.code && html`<code class="code">${clean(error.code, 40)}</code>`}</p>
    ${detail && html`<p>${detail}</p>`}
    ${error?.hint && !error.denied && html`<p class="hint">${clean(error.hint, 600)}</p>`}
    <${Steps} next=${error?.next} remote=${error?.remote} />
    ${onRetry && html`<${Button} icon="reload" onClick=${onRetry}>${t('Try again')}</${Button}>`}
  </div>`;
}

/**
 * State is one of the states of a view in place of its content: status is loading, empty, partial, denied, missing or error.
 * title and children say what would be here; commands are the command lines that fill it; rights are those that denied needs.
 */
export function State({ status, title, children, commands = [], rights = 'admin', error, onRetry, testid }) {
  if (status === 'loading') {
    return html`<div class="state" data-status="loading" data-testid=${testid} role="status"><span class="spinner" aria-hidden="true"></span>${title ?? t('Loading')}</div>`;
  }
  if (status === 'error' || status === 'missing') {
    return html`<div class="state" data-status="error" data-testid=${testid}><${Failure} error=${error} onRetry=${onRetry} />${children}</div>`;
  }
  if (status === 'denied') {
    return html`<div class="state" data-status="denied" data-testid=${testid}>
      <p class="state-title"><${Icon} name="lock" />${title ?? t('This view needs more rights: {rights}.', { rights: t(rightsText[rights]) })}</p>${children}<${SignIn} rights=${rights} /></div>`;
  }
  return html`<div class="state" data-status=${status} data-testid=${testid}>
    <p class="state-title">${title ?? t(status === 'partial' ? 'Incomplete' : 'Nothing here yet')}</p>${children}
    ${commands.map((text) => html`<${Command} key=${text} text=${text} />`)}
  </div>`;
}

/** rightsText has the words for the rights of a session. */
export const rightsText = { none: 'read only', read: 'read only', call: 'may call', admin: 'may change' };

/**
 * Resource shows a document of useResource by children(data), or the state that it is in. Data that could not be loaded again stays,
 * with the failure above it. empty(data) may return what is shown if there is nothing in it.
 */
export function Resource({ of: resource, rights, title, empty, children, testid }) {
  const { state, data, error, reload } = resource;
  if (data === null || data === undefined) {
    return html`<${State} status=${state === 'ready' ? 'empty' : state} error=${error} rights=${rights} title=${state === 'denied' ? title : undefined} onRetry=${reload} testid=${testid} />`;
  }
  const nothing = empty?.(data);
  return html`<div class="resource" data-status=${nothing ? 'empty' : state} data-testid=${testid}>
    ${error && html`<${Failure} error=${error} onRetry=${reload} />`}${nothing || children(data)}</div>`;
}

/** nodeState returns the tone and the words for the state in a status. */
export function nodeState({ state }) {
  const [tone, word] = Object.hasOwn(nodeStates, state) ? nodeStates[state] : ['warn', 'unknown'];
  return [tone, t(word)];
}
const nodeStates = { ready: ['good', 'Ready'], starting: ['info', 'Starting'], degraded: ['warn', 'Degraded'], draining: ['warn', 'Stopping'] };

/** reachOf returns the tone and the words for the state of an agent. */
export function reachOf(state) {
  const [tone, word] = Object.hasOwn(reach, state ?? '') ? reach[state] : ['', 'unknown'];
  return [tone, t(word)];
}
const reach = { reachable: ['good', 'reachable'], unreachable: ['bad', 'unreachable'], refused: ['warn', 'refused'] };

/** wordOf returns the words for a value of the API, or the value itself if the table has none. */
export const wordOf = (table, value) => (Object.hasOwn(table, value ?? '') ? t(table[value]) : clean(value, 60));

/** tableName returns the name of a table for screen readers. */
export const tableName = (name) => t('Table: {name}', { name });

/** Needs shows children if the page has a right, else how to get it. */
export function Needs({ rights, title, children }) {
  session.value; // renders again when the session changes
  return may(rights) ? children : html`<${State} status="denied" rights=${rights} title=${title} />`;
}

// ---- Tables ----

/**
 * Table is a table whose columns can be sorted: columns are {id, title, value(row) for sorting, cell(row), end: numbers at the end,
 * wide: gets the space, hide: true leaves it out below 600 px}. key(row) is the identity of a row. sort is 'id' or '-id', '' keeps the order of rows.
 */
export function Table({ caption, columns, rows, rowKey, sort: initial = '', onOpen, isCurrent, testid, limit = 0 }) {
  const [sort, setSort] = useState(initial);
  const down = sort.startsWith('-');
  const by = columns.find((c) => c.id === sort.replace(/^-/, ''));
  const value = by?.value;
  const sorted = value ? [...rows].sort((a, b) => compare(value(a), value(b)) * (down ? -1 : 1)) : rows;
  const shown = limit ? sorted.slice(0, limit) : sorted;
  const choose = (c) => {
    const descending = by === c && !down;
    setSort(descending ? `-${c.id}` : c.id);
    announce(t(descending ? 'Sorted by {column}, descending' : 'Sorted by {column}, ascending', { column: c.title }));
  };
  return html`<div class="table-wrap" tabindex="0" role="group" aria-label=${caption}><table data-testid=${testid}>
    <caption class="visually-hidden">${caption}</caption>
    <thead><tr>${columns.map((c) => html`<th key=${c.id} scope="col" class=${cx(c.end && 'end', c.hide && 'wide-only', c.wide && 'wide')}
      aria-sort=${by === c ? (down ? 'descending' : 'ascending') : undefined}>
      ${c.value ? html`<button type="button" class="sort" onClick=${() => choose(c)}>${c.title}${by === c && html`<span class="arrow" aria-hidden="true">${down ? '↓' : '↑'}</span>`}</button>` : c.title}</th>`)}</tr></thead>
    <tbody>${shown.map((row) => html`<tr key=${rowKey(row)} class=${cx(onOpen && 'opens', isCurrent?.(row) && 'current')} onClick=${onOpen && ((event) => open(event, row, onOpen))}>
      ${columns.map((c) => html`<td key=${c.id} class=${cx(c.end && 'end', c.hide && 'wide-only', c.wide && 'wide')}>${c.cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

// A click on a row opens it, unless it was meant for something in it or for a selection. The keyboard has the link in the row.
function open(event, row, onOpen) {
  if (event.target.closest('a, button, input, select, code') || String(getSelection())) return;
  onOpen(row);
}

const collator = new Intl.Collator('en', { numeric: true });

function compare(a, b) {
  const none = (v) => v === undefined || v === null || v === '' || Number.isNaN(v);
  if (none(a) || none(b)) return none(a) - none(b);
  return typeof a === 'number' && typeof b === 'number' ? a - b : collator.compare(String(a), String(b));
}

// system, light or dark; kept in this browser.
const theme = signal(stored());

function stored() {
  try {
    const value = localStorage.getItem('lmosd-theme');
    return value === 'light' || value === 'dark' ? value : 'system';
  } catch {
    return 'system';
  }
}

/** scheme changes when the colors change: pictures draw again. It is the theme in force, light or dark. */
export const scheme = signal('light');

const prefersDark = matchMedia('(prefers-color-scheme: dark)');
function applyTheme() {
  const chosen = theme.peek();
  if (chosen === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  scheme.value = chosen === 'system' ? (prefersDark.matches ? 'dark' : 'light') : chosen;
}
theme.subscribe(applyTheme);
prefersDark.addEventListener('change', applyTheme);

function setTheme(value) {
  theme.value = value;
  try {
    if (value === 'system') localStorage.removeItem('lmosd-theme');
    else localStorage.setItem('lmosd-theme', value);
  } catch {
    // Not kept.
  }
}

/** ThemeSwitch chooses the colors. */
export function ThemeSwitch() {
  return html`<div class="theme"><span>${t('Theme')}</span><${Segments} label=${t('Theme')} value=${theme.value} onChange=${setTheme} options=${[['system', t('System')], ['light', t('Light')], ['dark', t('Dark')]]} testid="theme" /></div>`;
}
