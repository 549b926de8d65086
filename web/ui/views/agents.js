// The agents: all of the index, by words, fields and facets.
import { html, useEffect, useMemo, useRef, useState } from '../vendor/preact.js';
import { get, isAbort } from '../api.js';
import { go, href } from '../router.js';
import { Badge, Dot, Failure, Heading, Icon, reachOf, State } from '../ui.js';
import { clean, num, plural, t } from '../words.js';
import { agents, prepare, retry, use } from '../agentlist.js';
import { VirtualList } from '../list.js';

const facets = [
  ['capability', 'All capabilities', 'Capability'],
  ['type', 'All types', 'Type'],
  ['organization', 'All organizations', 'Organization'],
  ['protocol', 'All protocols', 'Protocol'],
];
// The values of a facet that are offered, the most frequent ones.
const maxValues = 200;

// The row that was open last stays active when the person comes back.
let lastKey = '';

/** useFound asks the node for what words and fields find, again when agents come or go: the filter of the page knows no fields and no typos. */
function useFound(query, count) {
  const [found, setFound] = useState({ query: '', items: null, coverage: null, total: undefined, error: null });
  useEffect(() => {
    if (!query) return undefined;
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const page = await get('v1/find', { params: { q: query, limit: 1000, timeout: '2s' }, signal: controller.signal });
        setFound({ query, items: (page.items ?? []).map(prepare), coverage: page.coverage, total: page.total, error: null });
      } catch (error) {
        if (controller.signal.aborted || isAbort(error)) return;
        setFound({ query, items: null, coverage: null, total: undefined, error });
      }
    }, 150);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [query, count]);
  return query && found.query === query ? found : null;
}

// count returns the values of a facet with their number, the most frequent first.
function count(items, name) {
  const counts = new Map();
  for (const item of items) for (const value of item.facets[name]) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}

const chosenIn = (route) => Object.fromEntries(facets.map(([name]) => [name, route.query.get(name) ?? '']));

export default function Agents({ route }) {
  useEffect(use, []);
  const { state, items, total, coverage, complete, error } = agents.value;
  const [query, setQuery] = useState(route.query.get('q') ?? '');
  const [chosen, setChosen] = useState(() => chosenIn(route));
  const words = query.trim();
  const found = useFound(words, complete ? items.length : 0);

  // The address follows the filter, and the filter an address that the person opens.
  const address = useRef(route.hash);
  useEffect(() => {
    address.current = href('agents', '', { q: words, ...chosen });
    go(address.current, { replace: true });
  }, [words, chosen]);
  useEffect(() => {
    if (route.hash === address.current) return;
    address.current = route.hash;
    setQuery(route.query.get('q') ?? '');
    setChosen(chosenIn(route));
  }, [route.hash]);

  // Until the node answers, the words are looked for in what is here; live states of the list hold for what was found, too.
  const base = useMemo(() => {
    if (!words) return items;
    if (found?.items) {
      const here = new Map(items.map((item) => [item.key, item]));
      return found.items.map((item) => here.get(item.key) ?? item);
    }
    const parts = words.toLowerCase().split(/\s+/);
    return items.filter((item) => parts.every((part) => item.hay.includes(part)));
  }, [items, words, found]);
  const shown = useMemo(() => {
    const wanted = Object.entries(chosen).filter(([, value]) => value);
    return wanted.length ? base.filter((item) => wanted.every(([name, value]) => item.facets[name].includes(value))) : base;
  }, [base, chosen]);
  const counts = useMemo(() => Object.fromEntries(facets.map(([name]) => [name, count(items, name)])), [items]);

  const open = (item) => {
    lastKey = item.key;
    go(href('agents', item.key));
  };
  const keys = (event) => {
    if (event.key !== 'ArrowDown') return;
    event.preventDefault();
    document.querySelector('[data-testid=agents-list]')?.focus();
  };
  const cover = (words && found?.coverage) || coverage;
  const partial = cover && (cover.answered < cover.asked || cover.truncated || cover.unreachable > 0);
  const filtered = words || Object.values(chosen).some(Boolean);
  const status = state !== 'ready' ? state : items.length === 0 && complete && !words ? 'empty' : partial || !complete ? 'partial' : 'ready';
  return html`<${Heading} title=${t('Agents')} />
  <div class="toolbar agents-tools">
    <div class="field grow agents-search"><label class="visually-hidden" for="agents-q">${t('Search agents')}</label>
      <input id="agents-q" type="search" value=${query} placeholder=${t('Words, or fields like capability:… type:agent')} spellcheck=${false} autocomplete="off"
        aria-describedby="agents-count" onInput=${(event) => setQuery(event.currentTarget.value)} onKeyDown=${keys} data-testid="agents-search" /></div>
    ${facets.map(([name, all, label]) => (counts[name].length > 0 || chosen[name]) && html`<div class="field facet" key=${name}><label class="visually-hidden" for=${`facet-${name}`}>${t(label)}</label>
      <select id=${`facet-${name}`} value=${chosen[name]} data-testid=${`facet-${name}`} onChange=${(event) => { const { value } = event.currentTarget; setChosen({ ...chosen, [name]: value }); }}>
        <option value="">${t(all)}</option>
        ${chosen[name] && !counts[name].slice(0, maxValues).some(([value]) => value === chosen[name]) && html`<option value=${chosen[name]}>${clean(chosen[name], 80)}</option>`}
        ${counts[name].slice(0, maxValues).map(([value, n]) => html`<option key=${value} value=${value}>${`${clean(value, 80)} (${num(n)})`}</option>`)}
      </select></div>`)}
  </div>
  <div class="agents" data-status=${status} data-testid="agents">
    <p id="agents-count" class="count" role="status" data-testid="agents-count">${state === 'ready' && html`<span>${filtered || shown.length !== (total ?? items.length)
        ? t('{n} of {total} shown', { n: num(shown.length), total: num(Math.max(total ?? 0, items.length, words && found?.total ? found.total : 0)) })
        : t('{n} shown', { n: num(shown.length) })}</span>
      ${cover ? html`<span class=${partial ? 'warn-text' : ''}>${t('{answered} of {asked} answered', { answered: num(cover.answered), asked: plural(cover.asked, 'node') })}</span>` : html`<span>${t('index of this node')}</span>`}
      ${cover?.truncated && html`<span class="warn-text">${t('the search ended early')}</span>`}
      ${cover?.unreachable > 0 && html`<span class="warn-text">${t('{n} unreachable', { n: num(cover.unreachable) })}</span>`}
      ${!complete && html`<span>${t('more are loading')}</span>`}
      ${words && !found && html`<span>${t('searching')}</span>`}`}</p>
    ${(found?.error || (error && state === 'ready')) && html`<${Failure} error=${found?.error ?? error} onRetry=${error ? retry : undefined} />`}
    ${state !== 'ready'
      ? html`<${State} status=${state} error=${error} rights="read" onRetry=${retry} />`
      : shown.length
        ? html`<${VirtualList} items=${shown} rowHeight=${64} label=${t('Agents')} rowKey=${(item) => item.key} row=${Row} onOpen=${open} testid="agents-list" initial=${lastKey} onActive=${(key) => { lastKey = key; }} />`
        : filtered
          ? html`<${State} status="empty" title=${t('No agent matches.')}><p>${t('Try fewer words, or another filter.')}</p></${State}>`
          : complete && html`<${State} status="empty" title=${t('The index of this node has no agents yet.')} commands=${['lmosd expose exec:./my-agent', 'lmosd publish weather.td.json']} />`}
  </div>`;
}

function Row({ agent }) {
  const actions = (agent.actions ?? []).slice(0, 8).map((name) => clean(name, 40)).join(' · ');
  const [tone, state] = reachOf(agent.state);
  return html`<span class="agent-row">
    <${Dot} tone=${tone} />
    <span class="agent-row-main"><span class="agent-row-title"><span class="agent-row-name">${clean(agent.title || agent.name, 120)}</span>
        <span class="visually-hidden">${state}</span>
        ${agent.local && html`<${Badge} tone="accent">${t('here')}</${Badge}>`}
        ${agent.equivocation && html`<${Badge} tone="bad">${t('two versions')}</${Badge}>`}
        ${agent.resembles && html`<${Badge} tone="warn">${t('resembles {name}', { name: clean(agent.resembles, 30) })}</${Badge}>`}
        ${agent.organization?.name && html`<${Badge}>${clean(agent.organization.name, 40)}</${Badge}>`}</span>
      <span class="agent-row-text">${clean(agent.description, 200) || clean((agent.capabilities ?? [])[0] ?? agent.name, 120)}</span></span>
    <span class="agent-row-actions">${actions}</span>
    <${Icon} name="open" size=${16} />
  </span>`;
}
