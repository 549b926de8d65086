// The stages of a call as bars on one axis of time.
import { html } from './vendor/preact.js';
import { ms, t } from './words.js';

const names = { resolve: 'Resolve', dial: 'Connect', host: 'Host', agent: 'Agent', first: 'First part', whole: 'Whole' };

const known = (n) => typeof n === 'number' && Number.isFinite(n) && n >= 0;

/** parseTiming reads a Server-Timing header (W3C Server Timing §2) of a node: {stages, took_ms, path}. Unknown entries are left out. */
export function parseTiming(header) {
  const out = { stages: {}, took_ms: undefined, path: '' };
  for (const metric of (header ?? '').split(',').slice(0, 32)) {
    const [name, ...params] = metric.trim().split(';');
    for (const param of params) {
      const [key, value = ''] = param.trim().split(/=(.*)/s);
      if (key === 'dur') {
        const n = Number(value);
        if (known(n) && n < 1e9 && ['resolve', 'dial', 'host', 'agent'].includes(name)) out.stages[name] = n;
        if (known(n) && n < 1e9 && name === 'total') out.took_ms = n;
      } else if (key === 'desc' && name === 'path') {
        out.path = value.replace(/^"|"$/g, '');
      }
    }
  }
  return out;
}

/**
 * barsOf returns the bars of a call: finding the Thing, connecting, the host, and in it the agent; then the time to the first part and the whole.
 * The nodes have no common clock: the time on the way is taken as the same in both directions.
 */
export function barsOf({ stages, first_ms: first, took_ms: took }) {
  const bars = [];
  const { resolve, dial, host, agent } = stages ?? {};
  let at = 0;
  for (const [id, n] of [['resolve', resolve], ['dial', dial]]) {
    if (!known(n)) continue;
    bars.push({ id, start: at, took: n });
    at += n;
  }
  const inner = known(host) && host > 0 ? host : agent;
  if (known(took) && known(inner)) at += Math.max(0, took - at - inner) / 2;
  if (known(host) && host > 0) bars.push({ id: 'host', start: at, took: host });
  if (known(agent)) bars.push({ id: 'agent', start: at + (known(host) ? Math.max(0, host - agent) / 2 : 0), took: agent });
  // The first part and the whole are told apart: of a stream the whole is its length.
  if (known(first) && first > 0 && first !== took) bars.push({ id: 'first', start: 0, took: first });
  if (known(took)) bars.push({ id: 'whole', start: 0, took });
  return bars;
}

/**
 * Waterfall draws the stages of a call: {stages, first_ms, took_ms} of GET /v1/calls/{id}, or of parseTiming. The numbers beside the bars are
 * the accessible twin.
 */
export function Waterfall({ call, testid }) {
  const bars = barsOf(call);
  if (!bars.length) return null;
  const end = Math.max(...bars.map((bar) => bar.start + bar.took), 0.001);
  return html`<table class="waterfall" data-testid=${testid ?? 'waterfall'}>
    <caption class="visually-hidden">${t('Stages of the call')}</caption>
    <thead class="visually-hidden"><tr><th scope="col">${t('Stage')}</th><th scope="col">${t('Duration')}</th><th scope="col">${t('Picture')}</th></tr></thead>
    <tbody>${bars.map((bar) => html`<tr key=${bar.id} data-stage=${bar.id}><th scope="row">${t(names[bar.id])}</th><td class="end">${ms(bar.took)}</td>
      <td class="waterfall-bar"><svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true" focusable="false">
        <rect class=${`stage ${bar.id}`} x=${Math.round((bar.start / end) * 994)} y="0" width=${Math.max(6, Math.round((bar.took / end) * 1000))} height="10" rx="1" /></svg></td></tr>`)}</tbody>
  </table>`;
}
