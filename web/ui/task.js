// One task: its state, its output, what it requires, and its cancellation.
import { html, useEffect, useMemo, useRef, useState } from './vendor/preact.js';
import { get, isAbort, seg, send } from './api.js';
import { may, on } from './state.js';
import { Ago, announce, Badge, Button, Copy, Facts, Failure, ID, SignIn } from './ui.js';
import { clean, link, t } from './words.js';
import { Form, SchemaForm } from './form.js';
import { pointer } from './schema.js';

const texts = {
  pending: 'pending', running: 'running', 'input-required': 'requires input', completed: 'completed', failed: 'failed', cancelled: 'canceled', unknown: 'unknown',
};
const tones = { pending: 'info', running: 'info', 'input-required': 'warn', completed: 'good', failed: 'bad', cancelled: 'warn', unknown: '' };

/** taskStatus returns the words for a state of a task. */
export const taskStatus = (status) => (Object.hasOwn(texts, status) ? t(texts[status]) : clean(status, 30));
/** taskTone returns the tone of the badge of a state. */
export const taskTone = (status) => (Object.hasOwn(tones, status) ? tones[status] : '');

/** ended is true for a state after which a task does not change. */
export const ended = (status) => ['completed', 'failed', 'cancelled'].includes(status);

/** taskPath is the path of a run below the API. */
export const taskPath = (ref, action, id) => `things/${seg(ref)}/actions/${seg(action)}/${seg(id)}`;

/**
 * taskOf reads the state of a run as an action returns it (WoT Profile, ActionStatus): its id is the last part of href.
 * @returns a task as in /v1/tasks, or null
 */
export function taskOf(state, ref, name, action, location = '') {
  const at = typeof state?.href === 'string' && state.href ? state.href : location;
  let id = at.slice(at.lastIndexOf('/') + 1).split('?')[0];
  try {
    id = decodeURIComponent(id);
  } catch {
    // As it is.
  }
  if (!id || typeof state?.status !== 'string') return null;
  const inputs = state['lmosd:inputRequired'];
  const asks = typeof inputs === 'object' && inputs && Object.keys(inputs).length > 0;
  return {
    id, thing: ref, name, action, status: asks ? 'input-required' : state.status, output: state.output, error: state.error, inputs: asks ? inputs : undefined,
    requested: state.timeRequested, ended: state.timeEnded,
  };
}

/** useTask follows a run from its first state to its end: with the events of tasks, and every 5 s while the page is visible. */
export function useTask(first) {
  const [state, setState] = useState({ task: first, error: null });
  const id = first?.id;
  useEffect(() => {
    if (!first) return undefined;
    setState({ task: first, error: null });
    let task = first;
    let timer = 0;
    let soon = 0;
    let asked = 0; // the time of the request that is open
    let wait = 300;
    const controller = new AbortController();
    const load = async () => {
      clearTimeout(timer);
      soon = 0;
      if (ended(task.status) || controller.signal.aborted) return;
      if (Date.now() < asked + 10_000) {
        wait = 75; // what has changed meanwhile is asked for after the answer
        return;
      }
      if (!document.hidden) {
        asked = Date.now();
        try {
          const next = await get(`v1/tasks/${seg(task.id)}`, { signal: controller.signal });
          if (ended(next.status)) announce(t('The task has ended: {status}', { status: taskStatus(next.status) }));
          task = { ...task, ...next, inputs: next.inputs, error: next.error };
          setState({ task, error: null });
        } catch (error) {
          if (isAbort(error) || controller.signal.aborted) return;
          setState({ task, error });
        }
        asked = 0;
      }
      if (ended(task.status)) return;
      wait = Math.min(wait * 2, 5000);
      timer = setTimeout(load, wait);
    };
    timer = setTimeout(load, wait);
    const off = on('task', (event) => {
      if (!soon && (!event.id || event.id === task.id)) soon = setTimeout(load, 150);
    });
    return () => {
      controller.abort();
      clearTimeout(timer);
      clearTimeout(soon);
      off();
    };
  }, [id, first?.thing, first?.action]);
  return { ...state, setTask: (task) => setState({ task, error: null }) };
}

/** FollowedTask shows a run that an action began. */
export function FollowedTask({ first }) {
  const { task, error, setTask } = useTask(first);
  return html`<div class="followed" data-testid="followed-task" data-task-status=${task.status}>
    <p><${Badge} tone=${taskTone(task.status)}>${taskStatus(task.status)}</${Badge}> ${t('The action continues as a task.')} <${ID} value=${task.id} /></p>
    ${error && html`<${Failure} error=${error} />`}
    <${TaskPanel} task=${task} onChange=${(next) => next && setTask(next)} />
  </div>`;
}

// useOutput adds the output of a task that has ended: lists have none.
function useOutput(task) {
  const [full, setFull] = useState(null);
  const lacks = task.status === 'completed' && task.output === undefined;
  useEffect(() => {
    if (!lacks) return undefined;
    const controller = new AbortController();
    get(`v1/tasks/${seg(task.id)}`, { signal: controller.signal }).then(setFull, () => {});
    return () => controller.abort();
  }, [task.id, lacks]);
  return lacks && full?.id === task.id ? { ...task, output: full.output } : task;
}

/** TaskPanel shows a task; onChange is called with the new state if it is known, after an answer or a cancellation. */
export function TaskPanel({ task: given, onChange }) {
  const task = useOutput(given);
  const [busy, setBusy] = useState('');
  const [error, setError] = useState(null);
  const path = taskPath(task.thing, task.action, task.id);
  const cancel = async () => {
    setBusy('cancel');
    setError(null);
    try {
      await send('DELETE', path);
      onChange?.({ ...task, status: 'cancelled', inputs: undefined });
    } catch (err) {
      setError(err);
    }
    setBusy('');
  };
  const answer = async (answers) => {
    setBusy('answer');
    setError(null);
    try {
      const { body } = await send('POST', path, answers);
      onChange?.(taskOf(body, task.thing, task.name, task.action, task.id) ?? { ...task, status: 'running', inputs: undefined });
    } catch (err) {
      setError(err);
    }
    setBusy('');
  };
  return html`<div class="task-panel">
    <${Facts} items=${[
      [t('Id'), html`<${ID} value=${task.id} />`],
      [t('Started'), task.requested && html`<${Ago} value=${task.requested} />`],
      [t('Ended'), task.ended && html`<${Ago} value=${task.ended} />`],
      [t('Last state'), task.last_status && taskStatus(task.last_status)],
      [t('Last seen'), task.last_seen && html`<${Ago} value=${task.last_seen} />`],
      [t('Reason'), task.reason && clean(task.reason, 300)],
    ]} />
    ${task.output !== undefined && html`<${Value} value=${task.output} label=${t('Output')} />`}
    ${task.error && html`<${Failure} error=${task.error} />`}
    ${task.inputs && (may('call') ? html`<${Inputs} key=${JSON.stringify(Object.keys(task.inputs))} task=${task} busy=${busy === 'answer'} problems=${error?.errors} onAnswer=${answer} />` : html`<${SignIn} rights="call" />`)}
    ${error && html`<${Failure} error=${error} />`}
    ${!ended(task.status) && may('call') && html`<${Button} kind="danger" icon="close" busy=${busy === 'cancel'} onClick=${cancel} data-testid="cancel-task">${t('Cancel the task')}</${Button}>`}
  </div>`;
}

/** Value shows a JSON value as text, cut at 200,000 characters. */
export function Value({ value, label }) {
  const text = useMemo(() => clean(typeof value === 'string' ? value : JSON.stringify(value, null, 2), 200_000), [value]);
  return html`<div class="value"><div class="value-head"><span class="muted">${label}</span><${Copy} text=${text} label=${label} /></div>
    <pre class="answer-text" tabindex="0" role="group" aria-label=${label} data-testid="value">${text}</pre></div>`;
}

// Inputs are the forms for what a run requires, all answered at once.
function Inputs({ task, busy, problems = [], onAnswer }) {
  const keys = Object.keys(task.inputs).slice(0, 64);
  const forms = useRef(new Map());
  const [found, setFound] = useState({});
  for (const key of keys) {
    const input = task.inputs[key];
    if (!forms.current.has(key) && input?.kind !== 'url') {
      const form = new Form(input?.kind === 'form' ? input.schema ?? {} : undefined);
      form.strict = true; // agents take answers as they are
      forms.current.set(key, form);
    }
  }
  const sendAll = (action) => {
    const answers = {};
    const wrong = {};
    for (const key of keys) {
      const form = forms.current.get(key);
      if (action !== 'accept' || !form) {
        answers[key] = { action };
        continue;
      }
      const { text, errors } = form.body();
      if (errors.length) wrong[key] = errors;
      else answers[key] = { action, ...(text !== undefined && { content: JSON.parse(text) }) };
    }
    setFound(wrong);
    if (!Object.keys(wrong).length) onAnswer(answers);
  };
  // The node reports an error of an answer below the key of its input.
  const problemsOf = (key) => found[key] ?? problems.filter((p) => typeof p.field === 'string' && (p.field === pointer('', key) || p.field.startsWith(`${pointer('', key)}/`)))
    .map((p) => ({ ...p, field: p.field.slice(pointer('', key).length).replace(/^\/content/, '') }));
  const shown = useMemo(() => Object.fromEntries(keys.map((key) => [key, problemsOf(key)])), [found, problems]);
  return html`<div class="inputs" data-testid="inputs">
    <p class="inputs-title"><strong>${t('The task requires an answer.')}</strong></p>
    ${keys.map((key) => {
      const input = task.inputs[key] ?? {};
      const address = input.kind === 'url' ? link(input.url) : '';
      return html`<section key=${key} class="task-input" aria-label=${clean(key, 60)}>
        ${input.message && html`<p class="input-message">${clean(input.message, 2000)}</p>`}
        ${input.kind === 'url' && (address ? html`<p><a href=${address} target="_blank" rel="noreferrer noopener">${clean(address, 200)}</a></p>` : html`<p><code>${clean(input.url, 200)}</code></p>`)}
        ${(input.kind === 'model' || input.kind === 'roots') && input.params && html`<${Value} value=${input.params} label=${t('Parameters')} />`}
        ${forms.current.has(key) && html`<${SchemaForm} form=${forms.current.get(key)} problems=${shown[key]} label=${clean(input.message, 120) || t('Answer')} onSubmit=${() => sendAll('accept')} testid="input-form" />`}
      </section>`;
    })}
    <div class="buttons"><${Button} kind="primary" busy=${busy} onClick=${() => sendAll('accept')} data-testid="answer-task">${t('Send the answer')}</${Button}>
      <${Button} disabled=${busy} onClick=${() => sendAll('decline')}>${t('Decline')}</${Button}></div>
  </div>`;
}
