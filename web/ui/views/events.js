// Events: what came, changed and went, as it happens.
import { html, useEffect, useMemo, useState } from '../vendor/preact.js';
import { connected } from '../state.js';
import { go, href } from '../router.js';
import { Button, Card, Command, Heading, SearchField, State } from '../ui.js';
import { num, plural, t } from '../words.js';
import { EventRow, groupOf, groups, groupTitles, kindTitle } from '../eventrow.js';
import { most, reloadRecent, useRecent } from '../journal.js';

// More rows than these a person does not read, and the browser does not draw in a frame.
const page = 100;

function matches(event, chosen, words) {
  if (chosen.length && !chosen.includes(groupOf(event))) return false;
  if (!words.length) return true;
  const text = `${event.kind} ${kindTitle(event.kind)} ${event.name ?? ''} ${event.thing ?? ''} ${event.did ?? ''} ${event.code ?? ''} ${event.text ?? ''} ${event.trace_id ?? ''}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

export default function Events({ route }) {
  const { state, items, error } = useRecent();
  const [paused, setPaused] = useState(null); // the events at the pause
  const [count, setCount] = useState(page);
  const chosen = useMemo(() => (route.query.get('kind') ?? '').split(',').filter(Boolean), [route]);
  const query = route.query.get('q') ?? '';
  const words = useMemo(() => query.toLowerCase().split(/\s+/).filter(Boolean), [query]);
  const source = paused ?? items;
  const found = useMemo(() => source.filter((event) => matches(event, chosen, words)), [source, chosen, words]);
  const missed = paused ? items.findIndex((event) => event.seq <= (paused[0]?.seq ?? 0)) : 0;
  const waiting = missed < 0 ? items.length : missed;
  useEffect(() => setCount(page), [chosen, query]);
  const change = (next) => go(href('events', '', { kind: chosen.join(','), q: query, ...next }), { replace: true });
  const toggle = (group) => change({ kind: (chosen.includes(group) ? chosen.filter((g) => g !== group) : [...chosen, group]).join(',') });
  const counts = useMemo(() => {
    const n = {};
    for (const event of source) n[groupOf(event)] = (n[groupOf(event)] ?? 0) + 1;
    return n;
  }, [source]);
  const shownGroups = groups.filter((group) => counts[group] || chosen.includes(group));

  return html`
    <${Heading} title=${t('Events')} sub=${connected.value === 'live' && !paused ? t('live') : paused ? t('paused') : ''}>
      <${Button} icon=${paused ? 'play' : 'pause'} aria-pressed=${paused ? 'true' : 'false'} onClick=${() => setPaused(paused ? null : items)} data-testid="events-pause">
        ${paused ? (waiting ? t('Continue, {n} new', { n: num(waiting) }) : t('Continue')) : t('Pause')}</${Button}>
    </${Heading}>
    ${state !== 'ready' && state !== 'loading' ? html`<${State} status=${state} rights="read" error=${error} onRetry=${reloadRecent} />`
    : html`<div class="toolbar">
      <${SearchField} label=${t('Filter events')} placeholder=${t('Name, DID, code, trace …')} value=${query} onInput=${(event) => change({ q: event.currentTarget.value })} testid="events-filter" />
      <div class="chips" role="group" aria-label=${t('Kinds')}>${shownGroups.map((group) => html`<button type="button" class="chip" key=${group} aria-pressed=${chosen.includes(group) ? 'true' : 'false'} onClick=${() => toggle(group)} data-testid=${`events-kind-${group}`}>${t(groupTitles[group])} <span class="num">${num(counts[group] ?? 0)}</span></button>`)}</div>
    </div>
    <${Card} flush testid="events">
      ${found.length ? html`<ol class="events" data-status="ready">${found.slice(0, count).map((event) => html`<${EventRow} key=${event.seq} event=${event} />`)}</ol>
        ${found.length > count && html`<div class="foot"><${Button} onClick=${() => setCount(count + page)}>${t('Show more')}</${Button}><span class="muted">${t('{n} of {total}', { n: num(count), total: num(found.length) })}</span></div>`}
        ${found.length <= count && source.length >= most && html`<div class="foot muted"><span>${t('The page keeps the last {n}.', { n: plural(most, 'event') })}</span><${Command} text="lmosd events --limit 1000 --since 1h" /></div>`}`
      : state === 'loading' ? html`<${State} status="loading" />`
      : items.length ? html`<${State} status="empty" title=${t('No event matches.')}><p>${t('The filter hides {n}.', { n: plural(items.length, 'event') })}</p></${State}>`
      : html`<${State} status="empty" title=${t('No event yet. What changes in the mesh appears here.')} commands=${["lmosd expose 'exec:date' --name clock"]} />`}
    </${Card}>`}`;
}
