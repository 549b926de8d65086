// The tasks: what runs and ran longer than a call, what it requires, and its end.
import { html, useState } from '../vendor/preact.js';
import { may, useResource } from '../state.js';
import { href } from '../router.js';
import { Ago, Badge, Heading, Resource, Segments, State } from '../ui.js';
import { clean, num, plural, t } from '../words.js';
import { ended, TaskPanel, taskStatus, taskTone } from '../task.js';

const running = (task) => !ended(task.status);

export default function Tasks({ route }) {
  const resource = useResource('v1/tasks', { on: 'task', every: 10_000 });
  const [which, setWhich] = useState('all');
  return html`<${Heading} title=${t('Tasks')} sub=${t('Actions that continue without their caller.')}>
    <${Segments} label=${t('Show')} value=${which} onChange=${setWhich} options=${[['all', t('All')], ['running', t('Running')], ['input', t('Require input')]]} testid="task-filter" />
  </${Heading}>
  <${Resource} of=${resource} rights="read" testid="tasks" empty=${(data) => !data.items?.length && html`<${State} status="empty" title=${t('No task runs, and none has ended lately.')}
    commands=${['lmosd call weather getReport year=2026 --async']} />`}>${(data) => {
    const items = data.items.filter((task) => (which === 'running' ? running(task) : which === 'input' ? task.status === 'input-required' : true));
    return html`<p class="count" role="status">${plural(items.length, 'task')} · ${t('{n} running', { n: num(data.items.filter(running).length) })}</p>
      ${items.length === 0 && html`<${State} status="empty" title=${t('No task is in this state.')} />`}
      <ul class="tasks">${items.slice(0, 500).map((task) => html`<${Row} key=${`${task.thing} ${task.id} ${route.ref === task.id}`} task=${task} chosen=${route.ref === task.id} onChange=${resource.reload} />`)}</ul>`;
  }}</${Resource}>`;
}

function Row({ task, chosen, onChange }) {
  const [open, setOpen] = useState(null);
  const shown = open ?? (chosen || (task.status === 'input-required' && may('call')));
  return html`<li class="card task" data-testid="task" data-task-status=${task.status}>
    <div class="task-head"><button type="button" class="disclose" aria-expanded=${shown ? 'true' : 'false'} onClick=${() => setOpen(!shown)}><span class="task-name">${clean(task.name, 80)}.${clean(task.action, 80)}</span></button>
      <${Badge} tone=${taskTone(task.status)}>${taskStatus(task.status)}</${Badge}>
      <span class="muted"><${Ago} value=${task.requested} /></span>
      <a href=${href('agents', task.thing)}>${t('Agent')}</a></div>
    ${shown && html`<${TaskPanel} task=${task} onChange=${onChange} />`}
  </li>`;
}
