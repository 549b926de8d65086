// One event of the node as a row, in the views Overview and Events.
import { html } from './vendor/preact.js';
import { href } from './router.js';
import { Badge, Dot } from './ui.js';
import { at, clean, date, shortDID, t, thingName, time } from './words.js';

/** groups are the kinds of events that can be filtered, in their order. */
export const groups = ['agent', 'peer', 'task', 'call', 'warning', 'trust', 'relay', 'other'];

/** groupTitles has a word for each group. */
export const groupTitles = { agent: 'Agents', peer: 'Peers', task: 'Tasks', call: 'Calls', warning: 'Warnings', trust: 'Trust', relay: 'Relays', other: 'Other' };

/** groupOf returns the group of an event. */
export function groupOf(event) {
  const first = event.kind.split('.')[0];
  return groups.includes(first) ? first : 'other';
}

const kinds = {
  'peer.connected': ['Peer connected', 'good'],
  'peer.disconnected': ['Peer disconnected', ''],
  'agent.added': ['Agent added', 'good'],
  'agent.changed': ['Agent changed', 'info'],
  'agent.removed': ['Agent removed', ''],
  'agent.reachable': ['Agent reachable', 'good'],
  'agent.unreachable': ['Agent unreachable', 'warn'],
  'task.started': ['Task started', 'info'],
  'task.changed': ['Task changed', 'info'],
  'task.ended': ['Task ended', ''],
  'call.done': ['Call', ''],
  'warning.raised': ['Warning', 'warn'],
  'warning.cleared': ['Warning cleared', 'good'],
  'trust.changed': ['Trust changed', 'accent'],
  'trust.policy': ['Access rules changed', 'accent'],
  'trust.token': ['Access tokens changed', 'accent'],
  'trust.key': ['Key changed', 'accent'],
  'relay.found': ['Relay found', 'good'],
  'relay.lost': ['Relay lost', 'warn'],
  'bootstrap.reached': ['Bootstrap reached', 'good'],
  'bootstrap.failed': ['Bootstrap failed', 'warn'],
  'config.reloaded': ['Configuration reloaded', 'info'],
  equivocation: ['Two records of one agent', 'bad'],
};

/** kindTitle returns the words for a kind of events. */
export const kindTitle = (kind) => (Object.hasOwn(kinds, kind) ? t(kinds[kind][0]) : clean(kind, 40));

/** tone returns the tone of an event. */
export function tone(event) {
  if (event.kind === 'call.done') return event.code ? 'bad' : 'good';
  if (event.kind === 'task.ended') return event.code === 'completed' ? 'good' : event.code === 'failed' ? 'bad' : '';
  return kinds[event.kind]?.[1] ?? '';
}

/** subject is what the event is about: the agent, or the node. */
function Subject({ event }) {
  if (event.thing) {
    const name = thingName(event.name || event.thing);
    return event.kind === 'agent.removed' ? html`<span class="event-name">${name}</span>` : html`<a class="event-name" href=${href('agents', event.thing)}>${name}</a>`;
  }
  if (event.name) return html`<span class="event-name">${clean(event.name, 80)}</span>`;
  return event.did ? html`<code class="event-name" title=${clean(event.did, 200)}>${shortDID(event.did)}</code>` : null;
}

/** EventRow is one event in a list. */
export function EventRow({ event }) {
  const trace = clean(event.trace_id, 64);
  const id = clean(event.id, 80);
  return html`<li class="event" data-kind=${event.kind} data-testid="event">
    <time class="num" datetime=${date(event.at)?.toISOString()} title=${at(event.at)}>${time(event.at)}</time>
    <span class="event-kind"><${Dot} tone=${tone(event)} />${kindTitle(event.kind)}</span>
    <span class="event-text"><${Subject} event=${event} />${event.code && html`<${Badge} tone=${tone(event)}>${clean(event.code, 40)}</${Badge}>`}<span class="muted">${clean(event.text, 240)}</span></span>
    <span class="event-links">${event.kind === 'call.done' && id && html`<a href=${href('calls', id)}>${t('call')}</a>`}
      ${event.kind.startsWith('task.') && id && html`<a href=${href('tasks', id)}>${t('task')}</a>`}
      ${trace && html`<a href=${href('calls', '', { trace })}>${t('trace')}</a>`}</span>
  </li>`;
}
