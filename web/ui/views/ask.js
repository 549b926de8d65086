// Ask: the agent for a request in words.
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { isAbort, send } from '../api.js';
import { may } from '../state.js';
import { href } from '../router.js';
import { announce, Badge, Card, Heading, Segments, State } from '../ui.js';
import { clean, ms, num, percent, t } from '../words.js';

// The last answer stays while the person looks at an agent.
let last = { message: '', among: '', answer: null };

export default function Ask({ route }) {
  const [message, setMessage] = useState(route.query.get('q') ?? last.message);
  const [among, setAmong] = useState(last.among);
  const [state, setState] = useState({ status: last.answer ? 'ready' : 'idle', answer: last.answer, error: null });
  const controller = useRef(null);
  useEffect(() => () => controller.current?.abort(), []);
  const ask = async () => {
    const text = message.trim();
    if (!text) return;
    controller.current?.abort();
    controller.current = new AbortController();
    const { signal } = controller.current;
    setState({ status: 'loading', answer: null, error: null });
    try {
      const { body } = await send('POST', 'v1/route', { message: text, ...(among && { among }) }, { signal });
      last = { message: text, among, answer: { ...body, asked: text } };
      setState({ status: 'ready', answer: last.answer, error: null });
      announce(body.agent ? t('Selected: {name}', { name: clean(body.agent.name, 80) }) : t('No agent was selected.'));
    } catch (error) {
      if (signal.aborted || isAbort(error)) return;
      setState({ status: error.denied ? 'denied' : 'error', answer: null, error });
    }
  };
  return html`<${Heading} title=${t('Ask')} sub=${t('Which agent can do it? The node selects one and says why.')} />
    <form class="ask" onSubmit=${(event) => { event.preventDefault(); ask(); }}>
      <div class="field grow"><label for="ask-message">${t('What do you need?')}</label>
        <textarea id="ask-message" rows="2" maxlength="4000" value=${message} placeholder=${t('Will it rain in Bonn tomorrow?')} data-testid="ask-input" onInput=${(event) => setMessage(event.currentTarget.value)}
          onKeyDown=${(event) => { if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(); } }}></textarea></div>
      <div class="ask-tools"><${Segments} label=${t('Among')} value=${among} onChange=${setAmong} options=${[['', t('Agents')], ['all', t('Agents and tools')]]} />
        ${may('call') ? html`<button type="submit" class="button primary" disabled=${!message.trim() || state.status === 'loading'} aria-busy=${state.status === 'loading' ? 'true' : undefined} data-testid="ask">${t('Find an agent')}</button>` : ''}</div>
    </form>
    ${!may('call') && html`<${State} status="denied" rights="call" />`}
    ${state.status === 'loading' && html`<${State} status="loading" testid="ask-state" />`}
    ${state.status === 'error' && html`<${State} status="error" error=${state.error} onRetry=${ask} testid="ask-state" />`}
    ${state.status === 'denied' && may('call') && html`<${State} status="error" error=${state.error} testid="ask-state" />`}
    ${state.status === 'ready' && html`<${Result} answer=${state.answer} />`}`;
}

function Result({ answer }) {
  const { agent, candidates = [], asked } = answer;
  return html`<div class="route" data-status=${agent ? 'ready' : 'empty'} data-testid="route">
    ${agent
      ? html`<${Card} title=${clean(agent.name, 120)} tone="good" testid="selected" actions=${html`<a class="button primary" href=${href('agents', agent.id, { text: asked })} data-testid="open-form">${t('Open its form')}</a>`}>
          <p>${clean(answer.reason, 600)}</p>
          ${answer.tie_break && html`<p class="muted">${t('Decided by: {rule}', { rule: clean(answer.tie_break, 80) })}</p>`}
          <${Capabilities} of=${agent} /></${Card}>`
      : html`<${State} status="empty" title=${t('No agent was selected.')} commands=${['lmosd find']}><p>${clean(answer.reason, 600)}</p></${State}>`}
    <p class="muted">${t('method {method}', { method: clean(answer.method, 40) })} · ${ms(answer.took_ms)}</p>
    ${candidates.length > 0 && html`<${Card} title=${t('Candidates')} sub=${num(candidates.length)} testid="candidates"><ol class="candidates">${candidates.slice(0, 20).map((one) => html`<li key=${one.id}>
      <div class="candidate-head"><a href=${href('agents', one.id, { text: asked })}>${clean(one.name, 120)}</a>${one.id === agent?.id && html`<${Badge} tone="good">${t('selected')}</${Badge}>`}
        <span class="score">${percent(one.score)}</span><meter min="0" max="1" value=${Math.max(0, Math.min(1, Number(one.score) || 0))} aria-label=${t('Match')}></meter></div>
      <${Capabilities} of=${one} /></li>`)}</ol></${Card}>`}
  </div>`;
}

function Capabilities({ of: one }) {
  const list = (one.capabilities ?? []).slice(0, 6);
  return html`<ul class="capabilities">${list.map((c) => html`<li key=${c.id}><code>${clean(c.id, 100)}</code> ${clean(c.description, 200)}${' '}
    ${c.examples?.length > 0 && html`<span class="muted">${c.examples.slice(0, 3).map((e) => `“${clean(e, 100)}”`).join(' · ')}</span>`}</li>`)}</ul>`;
}
