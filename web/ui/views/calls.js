// Calls: what consumers of this node called, how it went, and where the time was.
import { html, useEffect, useState } from '../vendor/preact.js';
import { useResource } from '../state.js';
import { go, href } from '../router.js';
import { Ago, Badge, Button, Card, cx, Facts, Heading, ID, Resource, SearchField, Segments, State, Table } from '../ui.js';
import { at, bytes, clean, ms, num, t, thingName, time } from '../words.js';

const tones = { completed: 'good', failed: 'bad', canceled: 'warn', running: 'info' };
const words = { completed: 'Completed', failed: 'Failed', canceled: 'Canceled', running: 'Running' };

function Status({ call }) {
  return html`<${Badge} tone=${tones[call.status] ?? ''}>${call.code ? clean(call.code, 40) : t(words[call.status] ?? 'unknown')}</${Badge}>`;
}

const nameOf = (call) => thingName(call.name || call.thing);

/** Bars loads the drawing of the stages with the first call that is opened. */
function Bars({ call }) {
  const [module, setModule] = useState(null);
  useEffect(() => {
    let ended = false;
    import('../waterfall.js').then((m) => !ended && setModule(m), () => {});
    return () => { ended = true; };
  }, []);
  return module && html`<${module.Waterfall} call=${call} />`;
}

function Detail({ id, back }) {
  const call = useResource(`v1/calls/${encodeURIComponent(id)}`, { on: 'call', pace: 2000 });
  const close = html`<a class="button quiet" href=${back} data-testid="call-close">${t('Close')}</a>`;
  return html`<${Card} title=${t('Call')} testid="call" actions=${close}>
    <${Resource} of=${call} rights="admin">${(c) => html`
      <div class="row"><a class="call-name" href=${href('agents', c.thing)}>${nameOf(c)}</a><code>${clean(c.action, 80)}</code><${Status} call=${c} /></div>
      ${c.stages ? html`<${Bars} call=${c} />` : html`<p class="muted">${t('The stages of this call were not measured.')}</p>`}
      <${Facts} items=${[
        [t('Began'), html`<span>${at(c.at)} · <${Ago} value=${c.at} /></span>`],
        [t('Took'), ms(c.took_ms)],
        [t('First part'), c.parts > 0 && ms(c.first_ms)],
        [t('Operation'), html`<code>${clean(c.op, 60)}</code>`],
        [t('From'), clean(c.from, 200)],
        [t('Way'), clean(c.via, 60)],
        [t('Path'), c.path?.length > 0 && html`<span class="path">${c.path.slice(0, 9).map((did) => html`<${ID} key=${did} value=${did} copy=${false} />`)}</span>`],
        [t('Host'), c.host && html`<${ID} value=${c.host} />`],
        [t('Parts'), num(c.parts)],
        [t('Sent'), bytes(c.bytes_in)],
        [t('Received'), bytes(c.bytes_out)],
        [t('Trace'), c.trace_id && html`<span><${ID} value=${c.trace_id} short=${false} /> <a href=${href('calls', '', { trace: c.trace_id })}>${t('All calls of this trace')}</a></span>`],
        ['ID', html`<${ID} value=${c.id} short=${false} />`],
      ]} />`}</${Resource}>
  </${Card}>`;
}

const columns = (query) => [
  { id: 'at', title: t('Time'), value: (c) => c.at, cell: (c) => html`<time class="num nowrap" datetime=${c.at} title=${at(c.at)}>${time(c.at)}</time>` },
  { id: 'what', title: t('Agent and action'), wide: true, value: (c) => `${nameOf(c)}.${c.action}`, cell: (c) => html`<a class="call-link" href=${href('calls', c.id, query)} data-testid="call-link">${nameOf(c)}<span class="muted"> · ${clean(c.action || c.op, 60)}</span></a><span class="narrow-only muted num">${ms(c.took_ms)}</span>` },
  { id: 'from', title: t('From'), hide: true, value: (c) => c.from, cell: (c) => html`<span class="cut narrow" title=${clean(c.from, 200)}>${clean(c.from, 40)}</span>` },
  { id: 'via', title: t('Way'), hide: true, value: (c) => c.via, cell: (c) => html`<span class="nowrap">${clean(c.via, 30)}</span>` },
  { id: 'status', title: t('Result'), value: (c) => c.code || c.status, cell: (c) => html`<${Status} call=${c} />` },
  { id: 'took', title: t('Took'), end: true, hide: 'narrow', value: (c) => c.took_ms, cell: (c) => ms(c.took_ms) },
];

export default function Calls({ route }) {
  const query = { thing: route.query.get('thing') ?? '', code: route.query.get('code') ?? '', trace: route.query.get('trace') ?? '' };
  const failed = query.code === 'failed';
  const calls = useResource('v1/calls', { params: { limit: 500, thing: query.thing, trace: query.trace, code: failed ? '' : query.code }, on: 'call', pace: 500, every: 5000, rights: 'admin' });
  const change = (next) => go(href('calls', route.ref, { ...query, ...next }), { replace: true });
  const filtered = query.thing || query.code || query.trace;
  const field = (name, label) => html`<${SearchField} label=${label} value=${query[name]} onChange=${(event) => change({ [name]: event.currentTarget.value.trim() })} testid=${`calls-${name}`} />`;
  return html`
    <${Heading} title=${t('Calls')} sub=${t('The last 500 calls of consumers of this node, without their content')} />
    <${Resource} of=${calls} rights="admin" title=${t('Calls are shown to sessions with all rights.')} testid="calls">${(list) => {
      const items = failed ? list.items.filter((c) => c.status === 'failed') : list.items;
      return html`<div class="toolbar">
        ${field('thing', t('Agent'))}${field('trace', t('Trace id'))}
        ${failed ? '' : field('code', t('Error code'))}
        <${Segments} label=${t('Result')} value=${failed ? 'failed' : 'all'} onChange=${(value) => change({ code: value === 'failed' ? 'failed' : '' })} options=${[['all', t('All')], ['failed', t('Failed')]]} />
        ${filtered && html`<${Button} kind="quiet" onClick=${() => change({ thing: '', code: '', trace: '' })}>${t('Remove the filter')}</${Button}>`}
      </div>
      <div class=${cx('split', route.ref && 'open')}>
        <${Card} flush>${items.length
          ? html`<${Table} caption=${t('Calls')} columns=${columns(query).filter((c) => !route.ref || c.hide !== true)} rows=${items} rowKey=${(c) => c.id} limit=${200} onOpen=${(c) => go(href('calls', c.id, query))} isCurrent=${(c) => c.id === route.ref} testid="calls-table" />
            ${items.length > 200 && html`<p class="foot muted">${t('{n} of {total}', { n: num(200), total: num(items.length) })}</p>`}`
          : html`<${State} status="empty" title=${filtered ? t('No call matches.') : t('No call yet.')} commands=${filtered ? [] : ['lmosd call weather getWeather question="Rain in Bonn?"']} />`}</${Card}>
        ${route.ref && html`<${Detail} key=${route.ref} id=${route.ref} back=${href('calls', '', query)} />`}
      </div>`;
    }}</${Resource}>`;
}
