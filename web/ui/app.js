// The frame of the page: header, navigation, search, sign-in, and the view of the route.
import { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState, signal } from './vendor/preact.js';
import { get } from './api.js';
import { connected, loadSession, lostAt, may, notice, session, signIn, signOut, start, status } from './state.js';
import { go, href, route } from './router.js';
import { announcement, Button, Command, consoleCommand, cx, Dialog, Dot, Heading, Icon, nodeState, rightsText, SignIn, State, ThemeSwitch } from './ui.js';
import { nav, views } from './views/index.js';
import { at, clean, t, time } from './words.js';

/** The dialog that is open: '', search, session or more. */
const dialog = signal('');

// ---- Parts of the frame ----

const dots = { live: 'good', connecting: '', lost: 'bad', paused: 'warn' };
const connection = { live: 'Live', connecting: 'Connecting', lost: 'No connection', paused: 'Paused' };

function Header() {
  const s = status.value;
  const state = connected.value;
  // A node that answers and is not well says so in place of "Live".
  const [tone, word] = state === 'live' && s && s.state !== 'ready' ? nodeState(s) : [dots[state], t(connection[state])];
  return html`<header class="top">
    <a class="brand" href=${href('overview')} aria-label=${`${clean(s?.name, 40) || 'lmosd'}, ${t('Overview')}`}><img src="icon.svg" alt="" width="24" height="24" /><span class="brand-name" data-testid="node-name">${clean(s?.name, 40) || 'lmosd'}</span></a>
    ${s?.network && html`<span class="network" title=${t('Network')}>${clean(s.network, 40)}</span>`}
    <span class="conn" data-testid="connection" data-status=${state} title=${word}><${Dot} tone=${tone} /><span class="conn-text">${word}</span></span>
    <span class="grow"></span>
    <button type="button" class="search-button" onClick=${() => (dialog.value = 'search')} aria-keyshortcuts="Meta+K Control+K /" data-testid="search-open">
      <${Icon} name="search" size=${18} /><span class="search-text">${t('Search')}</span><kbd aria-hidden="true">${/Mac|iP/.test(navigator.platform) ? '⌘' : 'Ctrl'} K</kbd></button>
    <button type="button" class=${cx('rights', session.value.rights)} data-testid="rights" data-rights=${session.value.rights} onClick=${() => (dialog.value = 'session')}>
      <${Icon} name=${may('call') ? 'key' : 'lock'} size=${16} /><span>${t(rightsText[session.value.rights])}</span></button>
  </header>`;
}

function current(name) {
  const r = route.value.name;
  return (r === 'agent' ? 'agents' : r) === name;
}

function Item({ item, onClick }) {
  return html`<a href=${href(item.name)} aria-current=${current(item.name) ? 'page' : undefined} data-testid=${`nav-${item.name}`} onClick=${onClick}>
    <${Icon} name=${item.name} /><span>${t(item.title)}</span></a>`;
}

function Navigation() {
  return html`<nav class="side" aria-label=${t('Views')}><ul>${nav.map((item) => html`<li key=${item.name}><${Item} item=${item} /></li>`)}</ul></nav>`;
}

function PhoneBar() {
  const more = nav.some((item) => !item.phone && current(item.name));
  return html`<nav class="bar" aria-label=${t('Views')}><ul>
    ${nav.filter((item) => item.phone).map((item) => html`<li key=${item.name}><${Item} item=${item} /></li>`)}
    <li><button type="button" class=${cx(more && 'on')} aria-haspopup="dialog" onClick=${() => (dialog.value = 'more')} data-testid="nav-more"><${Icon} name="more" /><span>${t('More')}</span></button></li>
  </ul></nav>`;
}

function MoreDialog() {
  const close = () => (dialog.value = '');
  return html`<${Dialog} title=${t('More')} onClose=${close} kind="sheet"><ul class="more">${nav
    .filter((item) => !item.phone)
    .map((item) => html`<li key=${item.name}><${Item} item=${item} onClick=${close} /></li>`)}</ul></${Dialog}>`;
}

// ---- Session ----

const rightsLong = {
  none: 'This page only looks. Sign in to call agents or to change something.',
  read: 'Signed in: this page may look.',
  call: 'Signed in: this page may call agents.',
  admin: 'Signed in: this page may call agents and change the node.',
};

/** SessionDialog shows the rights of the page, and how to get more or to sign out. */
function SessionDialog() {
  const close = () => (dialog.value = '');
  const s = session.value;
  return html`<${Dialog} title=${t('Rights')} onClose=${close} testid="session">
    <p>${t(rightsLong[s.rights])}</p>
    ${s.maker && html`<p class="muted">${t('Signed in by {maker}', { maker: clean(s.maker, 80) })}${s.expires && html` · ${t('Ends {time}', { time: at(s.expires) })}`}</p>`}
    ${s.rights !== 'admin' && html`<${SignIn} rights="admin" />`}
    ${s.rights !== 'none' && html`<${Button} icon="lock" onClick=${() => { close(); signOut(); }}>${t('Sign out')}</${Button}>`}
    <${ThemeSwitch} />
  </${Dialog}>`;
}

const notices = {
  ended: 'The session has ended. This page is read only now.',
  linkUsed: 'The link was used or is too old. Make a new one with the command.',
  lost: 'The node does not answer.',
  signedIn: 'Signed in',
  signedOut: 'Signed out',
};

function Notice() {
  const n = notice.value;
  useEffect(() => {
    if (n?.kind !== 'info') return undefined;
    const timer = setTimeout(() => (notice.value = null), 4000);
    return () => clearTimeout(timer);
  }, [n]);
  return html`<div class="notices" role="status">${n && html`<div class=${cx('notice', n.kind)} data-testid="notice" data-notice=${n.name}>
    <${Icon} name=${n.kind === 'info' ? 'check' : 'info'} /><span class="notice-text">${t(notices[n.name])}</span>
    ${(n.name === 'ended' || n.name === 'linkUsed') && html`<${Command} text=${consoleCommand()} />`}
    <${Button} kind="quiet" icon="close" label=${t('Close')} onClick=${() => (notice.value = null)} /></div>`}</div>`;
}

function Lost() {
  const lost = connected.value === 'lost';
  useLayoutEffect(() => {
    document.documentElement.dataset.connected = connected.value;
  }, [connected.value]);
  return html`<div role="alert">${lost && html`<div class="lost" data-testid="lost"><${Icon} name="warning" /><span>${t('The node does not answer since {time}. What is shown is as of then.', { time: time(lostAt.value) })}</span>
    <span class="lost-trying"><span class="spinner" aria-hidden="true"></span>${t('Trying again')}</span></div>`}</div>`;
}

// ---- Search ----

/** score says how well a text matches the words of a query: 0 not at all. */
function score(text, query) {
  const s = text.toLowerCase();
  const q = query.toLowerCase();
  if (s.startsWith(q)) return 3;
  if (s.split(/\W+/).some((word) => word.startsWith(q))) return 2;
  return s.includes(q) ? 1 : 0;
}

function SearchDialog() {
  const [query, setQuery] = useState('');
  const [agents, setAgents] = useState([]);
  const [chosen, setChosen] = useState(0);
  const list = useRef(null);
  const close = () => (dialog.value = '');
  useEffect(() => {
    const q = query.trim();
    if (!q) {
      setAgents([]);
      return undefined;
    }
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const found = await get('v1/find', { params: { q, limit: 8, timeout: '1s' }, signal: controller.signal });
        if (!controller.signal.aborted) setAgents(found.items ?? []);
      } catch {
        if (!controller.signal.aborted) setAgents([]); // not a query: the views are there
      }
    }, 120);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [query]);
  const options = useMemo(() => {
    const q = query.trim();
    const found = nav
      .map((item) => ({ id: `v-${item.name}`, icon: item.name, title: t(item.title), sub: '', to: href(item.name), score: q ? score(t(item.title), q) : 1 }))
      .filter((option) => option.score > 0)
      .sort((a, b) => b.score - a.score);
    const things = agents.map((agent, i) => ({
      id: `a-${i}`, icon: 'agents', title: clean(agent.title || agent.name, 80), sub: clean(agent.description, 120), to: href('agents', agent.ref),
    }));
    return [...found, ...things];
  }, [query, agents]);
  const index = Math.min(chosen, options.length - 1);
  useLayoutEffect(() => {
    list.current?.querySelector('[aria-selected=true]')?.scrollIntoView({ block: 'nearest' });
  }, [index, options]);
  const take = (option) => {
    close();
    if (option) go(option.to);
  };
  const keys = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) setChosen((index + step + options.length) % Math.max(1, options.length));
    else if (event.key === 'Home' && event.ctrlKey) setChosen(0);
    else if (event.key === 'Enter') take(options[index]);
    else return;
    event.preventDefault();
  };
  return html`<${Dialog} title=${t('Search views and agents')} hideTitle onClose=${close} kind="palette" testid="search">
    <div class="palette-input"><${Icon} name="search" /><input type="text" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-autocomplete="list"
      aria-activedescendant=${options[index]?.id} aria-label=${t('Search views and agents')} placeholder=${t('Search views and agents')} value=${query} autocomplete="off" spellcheck=${false}
      onInput=${(event) => { setQuery(event.currentTarget.value); setChosen(0); }} onKeyDown=${keys} data-testid="search-input" /><kbd aria-hidden="true">Esc</kbd></div>
    <ul id="palette-list" role="listbox" aria-label=${t('Results')} ref=${list}>${options.map((option, i) => html`<li key=${option.id} id=${option.id} role="option" aria-selected=${i === index ? 'true' : 'false'}
      onMouseMove=${() => i !== index && setChosen(i)} onClick=${() => take(option)} data-testid="search-option"><${Icon} name=${option.icon} size=${18} /><span class="option-title">${option.title}</span><span class="option-sub">${option.sub}</span></li>`)}</ul>
    ${options.length === 0 && html`<p class="palette-none" role="status">${t('No result for “{query}”', { query: clean(query, 60) })}</p>`}
  </${Dialog}>`;
}

addEventListener('keydown', (event) => {
  const inField = event.target instanceof HTMLElement && event.target.closest('input, textarea, select, [contenteditable]');
  const search = (event.key === 'k' && (event.metaKey || event.ctrlKey)) || (event.key === '/' && !inField && !event.metaKey && !event.ctrlKey && !event.altKey);
  if (!search || (dialog.peek() && dialog.peek() !== 'search')) return;
  event.preventDefault();
  dialog.value = dialog.peek() === 'search' ? '' : 'search';
});

// ---- The view of the route ----

/** loaded has the modules of the views that were opened. */
const loaded = {};

function View() {
  const r = route.value;
  const [, changed] = useState(0);
  const known = Object.hasOwn(views, r.name);
  const view = loaded[r.name];
  useEffect(() => {
    if (!known || view) return;
    views[r.name]().then(
      (module) => { loaded[r.name] = { module }; changed((n) => n + 1); },
      (error) => { loaded[r.name] = { error }; changed((n) => n + 1); },
    );
  }, [r.name, view]);
  useLayoutEffect(() => {
    document.querySelector('main')?.scrollTo?.(0, 0);
    scrollTo(0, 0);
  }, [r.name, r.ref]);
  if (!known || view?.error) {
    return html`<div class="view"><${Heading} key="error" title=${t(known ? 'The view could not be loaded.' : 'Page not found')} />
      <div class="state" data-status="error"><p>${known ? '' : t('There is no view at this address.')}</p>
      ${known && html`<${Button} icon="reload" onClick=${() => location.reload()}>${t('Reload')}</${Button}>`}<a class="button" href=${href('overview')}>${t('Go to Overview')}</a></div></div>`;
  }
  if (!view) return html`<div class="view"><${State} status="loading" /></div>`;
  const Component = view.module.default;
  const key = r.name === 'agent' ? `agent ${r.ref}` : r.name;
  return html`<div class="view" data-view=${r.name}><${Guard} key=${key}><${Component} route=${r} /></${Guard}></div>`;
}

/** Guard shows an error of a view in its place: what an agent sends must not end the page. */
function Guard({ children }) {
  const [error, setError] = useState(null);
  this.componentDidCatch = (err) => {
    console.error(err);
    setError(err);
  };
  return error ? html`<${Heading} title=${t('Something went wrong')} /><${State} status="error" error=${error} onRetry=${() => setError(null)} />` : children;
}

function App() {
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector('h1')?.focus(); }}>${t('Skip to the content')}</a>
    <${Header} /><${Navigation} />
    <main id="main"><${Lost} /><${Notice} /><${View} /></main>
    <${PhoneBar} />
    <div class="visually-hidden" role="status" aria-live="polite">${announcement.value}</div>
    ${dialog.value === 'search' && html`<${SearchDialog} />`}
    ${dialog.value === 'session' && html`<${SessionDialog} />`}
    ${dialog.value === 'more' && html`<${MoreDialog} />`}`;
}

// The code of a link works once. It must not stay in the address, where the history keeps it.
const once = /^#once=([\w.~-]+)$/.exec(location.hash)?.[1];
if (once) {
  history.replaceState(null, '', `${location.pathname}${location.search}#/`);
  route.value = { name: 'overview', ref: '', query: new URLSearchParams(), hash: location.hash };
}

// The view of the first route loads while the frame is made.
if (Object.hasOwn(views, route.peek().name)) views[route.peek().name]().then((module) => (loaded[route.peek().name] = { module }), () => {});
const signedIn = once ? signIn(once) : loadSession();
start();
render(html`<${App} />`, document.getElementById('app'));
addEventListener('hashchange', () => {
  const code = /^#once=([\w.~-]+)$/.exec(location.hash)?.[1];
  if (!code) return;
  history.replaceState(null, '', '#/');
  route.value = { name: 'overview', ref: '', query: new URLSearchParams(), hash: '#/' };
  signIn(code);
});
signedIn.catch(() => {});
