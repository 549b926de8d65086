// One agent: who vouches for its description, how it is reached, and what it can: actions, properties and events, called from here.
import { html, useEffect, useId, useMemo, useRef, useState } from '../vendor/preact.js';
import { base, get, isAbort, Problem, request, seg, send, stream } from '../api.js';
import { may, useResource } from '../state.js';
import { href } from '../router.js';
import { Ago, announce, Badge, Button, Card, Copy, Dialog, Facts, Failure, Heading, ID, Icon, reachOf, Segments, SignIn, State } from '../ui.js';
import { bytes, clean, link, ms, num, plural, shortDID, t, time } from '../words.js';
import { Answer, AnswerView, receive } from '../answer.js';
import { curl, javascript, lmosd, python } from '../copyas.js';
import { Form, SchemaForm } from '../form.js';
import { FollowedTask, taskOf } from '../task.js';
import { parseTiming, Waterfall } from '../waterfall.js';

const isObject = (v) => typeof v === 'object' && v !== null && !Array.isArray(v);
const entries = (v) => (isObject(v) ? Object.entries(v).filter(([, one]) => isObject(one)) : []);

// A description may have thousands of actions.
const page = 50;

// A form is that of one schema: an affordance that the owner has changed begins anew, the others keep what was typed.
const keyOf = (name, affordance) => name + JSON.stringify(affordance);

export default function Agent({ route }) {
  const resource = useResource(`v1/agents/${seg(route.ref)}`, { on: 'agent', pace: 500, only: (event) => event.thing === (ref ?? route.ref) });
  const { data } = resource;
  const agent = data?.agent;
  const ref = agent?.ref;
  const [gone, setGone] = useState(null);
  const [dialog, setDialog] = useState('');
  const [ping, setPing] = useState(null);
  const measure = async () => {
    setPing({ busy: true });
    try {
      const { body } = await send('POST', `v1/ping/${seg(ref)}`, undefined, { params: { n: 5 } });
      setPing(body);
      announce(t('Ping: {time}', { time: ms(median(body.rtt_ms ?? [])) }));
    } catch (error) {
      setPing({ error });
    }
  };
  if (gone) {
    return html`<${Heading} title=${t('Withdrawn')} /><div class="state" data-status="empty" data-testid="withdrawn"><p class="state-title">${t('{name} is withdrawn.', { name: clean(gone.name, 80) })}</p>
      <a class="button" href=${href('agents')}>${t('All agents')}</a></div>`;
  }
  // The heading stays the same element while the rest loads: it has the focus.
  if (!agent) {
    const missing = resource.error?.status === 404 || resource.error?.status === 410;
    return html`<${Heading} title=${clean(route.ref.split('|')[0], 80)} />
      <${State} status=${resource.state === 'ready' ? 'empty' : resource.state} error=${missing ? problemOf(resource.error) : resource.error} rights="read" onRetry=${resource.reload} testid="agent-state" />
      <p><a href=${href('agents')}>${t('All agents')}</a></p>`;
  }
  const [tone, state] = reachOf(agent.state);
  const number = agent.version ?? data.td?.version?.instance;
  const version = typeof number === 'string' ? clean(number, 40) : '';
  return html`<${Heading} title=${clean(agent.title || agent.name, 120)} sub=${[agent.name !== agent.title && clean(agent.name, 80), version].filter(Boolean).join(' · ')}>
      <${Badge} tone=${tone} testid="agent-reach">${state}</${Badge}>
      ${agent.local && html`<${Badge} tone="accent">${t('here')}</${Badge}>`}
      ${may('call') && html`<${Button} onClick=${measure} busy=${ping?.busy} data-testid="ping">${t('Ping')}</${Button}>`}
      ${may('admin') && agent.local && html`<${Button} kind="danger" onClick=${() => setDialog('withdraw')} data-testid="withdraw">${t('Withdraw')}</${Button}>`}
    </${Heading}>
    <${Known} key=${ref} data=${data} route=${route} failed=${resource.error} ping=${ping} reload=${resource.reload} />
    ${dialog === 'withdraw' && html`<${Withdraw} agent=${agent} onClose=${() => setDialog('')} onGone=${setGone} />`}`;
}

// An agent that is not found is no route that is missing.
const problemOf = ({ title: name, code, detail, hint, status }) => ({ title: name, code, detail, hint, status });

function Known({ data, route, failed, ping, reload }) {
  const { agent, signature } = data;
  const td = data.td ?? {};
  const [via, setVia] = useState('');
  const [ask, setAsk] = useAsk();
  const paths = useResource(`v1/paths/${seg(agent.ref)}`, { on: 'agent', pace: 3000, only: (event) => event.thing === agent.ref });
  const actions = entries(td.actions);
  const properties = entries(td.properties);
  const events = entries(td.events);
  const shared = { agent, via, ask, td };
  const wanted = route.query.get('action') ?? '';
  return html`<div class="agent" data-status="ready" data-testid="agent">
    ${failed && html`<${Failure} error=${failed} onRetry=${reload} />`}
    ${data.moved_from && html`<p class="note" data-testid="moved">${t('{name} has moved: this is its successor.', { name: clean(data.moved_from, 120) })}</p>`}
    ${agent.resembles && html`<p class="note warn" data-testid="resembles"><${Icon} name="warning" />${t('The name looks like {name}. Compare the owners before you call it.', { name: clean(agent.resembles, 80) })}</p>`}
    ${data.namesakes?.length > 0 && html`<p class="note">${t('Other agents have this name:')} ${data.namesakes.slice(0, 8).map((one) => html`<a key=${one} href=${href('agents', one)}>${clean(one, 80)}</a> `)}</p>`}
    ${(data.warnings ?? []).slice(0, 10).map((w, i) => html`<p class="note warn" key=${i}><${Icon} name="warning" />${clean(w.title, 120)}${w.text && ` · ${clean(w.text, 400)}`}</p>`)}
    ${agent.description && html`<p class="description">${clean(agent.description, 2000)}</p>`}
    ${ping && !ping.busy && html`<${Ping} ping=${ping} />`}
    <div class="agent-grid">
      <div class="agent-does">
        <${Affordances} title=${t('Actions')} list=${actions} wanted=${wanted} testid="actions" one=${([name, action], open) => html`<${Action} key=${keyOf(name, action)} name=${name} action=${action} open=${open} text=${!wanted || wanted === name ? route.query.get('text') : ''} first=${name === (wanted || actions[0]?.[0])} ...${shared} />`}
          tools=${html`<label class="null-box"><input type="checkbox" checked=${ask} onChange=${(event) => setAsk(event.currentTarget.checked)} />${t('Ask before calls that change things')}</label>`} />
        <${Affordances} title=${t('Properties')} list=${properties} testid="properties" one=${([name, property], open) => html`<${Property} key=${keyOf(name, property)} name=${name} property=${property} open=${open} ...${shared} />`} />
        <${Affordances} title=${t('Events')} list=${events} testid="events" one=${([name, event], open) => html`<${Event} key=${keyOf(name, event)} name=${name} event=${event} open=${open} ...${shared} />`} />
        ${!actions.length && !properties.length && !events.length && html`<${State} status="empty" title=${t('The description has no actions, properties or events.')} />`}
      </div>
      <div class="agent-is">
        <${Chain} agent=${agent} signature=${signature} />
        ${agent.equivocation && html`<${Evidence} evidence=${agent.equivocation} />`}
        <${Paths} of=${paths} via=${via} setVia=${setVia} />
        <${About} agent=${agent} td=${td} />
        <${Raw} data=${data} />
      </div>
    </div></div>`;
}

// ---- What it is ----

/** Chain shows what was verified, each step with its result. */
function Chain({ agent, signature = {} }) {
  const steps = [
    [signature.verified === true, t('signed by'), html`<${ID} value=${signature.method || agent.owner} />`],
    [signature.verified === true, t('suite'), clean(signature.cryptosuite, 60)],
    [!agent.equivocation, agent.equivocation ? t('two versions') : t('one version'), t('number {seq}', { seq: String(signature.seq ?? '') })],
    [(agent.hosts ?? []).length > 0, plural((agent.hosts ?? []).length, 'host'), html`${(agent.hosts ?? []).slice(0, 8).map((one) => html`<${ID} key=${one} value=${one} />`)}`],
    [new Date(agent.expires) > new Date(), t('expires'), html`<${Ago} value=${agent.expires} />`],
  ];
  if (agent.grant) steps.splice(3, 0, [true, t('grant'), t('number {seq}', { seq: String(agent.grant.number) })]);
  const org = agent.organization;
  if (org) steps.splice(1, 0, [org.state === 'claimed' ? 'warn' : true, t('organization'), html`${clean(org.name || org.did, 80)} <${Badge} tone=${org.state === 'claimed' ? 'warn' : 'good'}>${t(orgText[org.state] ?? 'claimed')}</${Badge}>`]);
  return html`<${Card} title=${t('Chain of trust')} testid="chain"><ol class="chain">${steps.map(([ok, name, value]) => html`<li key=${name} class=${ok === 'warn' ? 'warn' : ok ? 'ok' : 'bad'} data-ok=${ok === true ? 'true' : 'false'}>
      <${Icon} name=${ok === true ? 'check' : 'warning'} size=${16} /><span class="visually-hidden">${ok === true ? t('verified') : t('not verified')}</span><span class="chain-name">${name}</span><span class="chain-value">${value}</span></li>`)}</ol>
    <${Facts} items=${[
      [t('Signed'), signature.created && html`<${Ago} value=${signature.created} />`],
      [t('SHA-256'), signature.sha256 && html`<${ID} value=${signature.sha256} />`],
      [t('Size'), signature.size && bytes(signature.size)],
      [t('Last seen'), html`<${Ago} value=${agent.last_seen} />`],
    ]} /></${Card}>`;
}

const orgText = { own: 'own', partner: 'partner', proven: 'proven', claimed: 'claimed' };

/** Evidence shows the two records that an owner signed with one number: anyone can verify them. */
function Evidence({ evidence }) {
  const records = (evidence.records ?? []).slice(0, 4);
  return html`<${Card} title=${t('Evidence of equivocation')} tone="bad" testid="equivocation">
    <p>${t('The owner signed two records with number {seq}. Nodes may see different descriptions.', { seq: String(evidence.seq) })}</p>
    <${Facts} items=${[[t('Owner'), html`<${ID} value=${evidence.owner} />`], [t('Seen'), html`<${Ago} value=${evidence.seen} />`]]} />
    ${records.map((record, i) => html`<div class="value" key=${i}><div class="value-head"><span class="muted">${t('Record {n}', { n: i + 1 })}</span><${Copy} text=${String(record)} label=${t('Record {n}', { n: i + 1 })} /></div>
      <pre class="answer-text small" tabindex="0" role="group" aria-label=${t('Record {n}', { n: i + 1 })}>${clean(record, 4000)}</pre></div>`)}
  </${Card}>`;
}

function Paths({ of: resource, via, setVia }) {
  const id = useId();
  const items = resource.data?.items ?? [];
  return html`<${Card} title=${t('Ways')} testid="ways">
    ${!resource.data ? html`<${State} status=${resource.state} error=${resource.error} rights="read" onRetry=${resource.reload} />` : html`<ul class="ways" data-status=${items.length ? 'ready' : 'empty'}>
      ${items.slice(0, 30).map((path) => html`<li key=${path.name + (path.href ?? '')}><code>${clean(path.name, 60)}</code>${path.down && html`<${Badge} tone="bad">${t('failed')}</${Badge}>`}
        ${path.took_ms > 0 && html`<span class="muted">${ms(path.took_ms)}</span>`}${path.href && html`<span class="muted clip">${clean(path.href, 120)}</span>`}</li>`)}</ul>
      ${items.length > 1 && html`<div class="field"><label for=${id}>${t('Call by')}</label><select id=${id} value=${via} onChange=${(event) => setVia(event.currentTarget.value)}>
        <option value="">${t('the best way')}</option>${items.slice(0, 30).map((path) => html`<option key=${path.name} value=${path.name}>${clean(path.name, 60)}</option>`)}</select></div>`}`}
  </${Card}>`;
}

function Ping({ ping }) {
  if (ping.error) return html`<${Failure} error=${ping.error} />`;
  const rtt = ping.rtt_ms ?? [];
  return html`<p class="note" data-testid="ping-result">${t('{path}: {times}, median {median}', { path: clean(ping.path, 60), times: rtt.slice(0, 10).map(ms).join(', '), median: ms(median(rtt)) })}
    ${ping.relay && html` · ${t('through {node}', { node: shortDID(ping.relay) })}`}</p>`;
}

function median(list) {
  const sorted = [...list].sort((a, b) => a - b);
  return sorted[sorted.length >> 1];
}

function About({ agent, td }) {
  const types = [].concat(td['@type'] ?? []).filter((x) => typeof x === 'string').slice(0, 8);
  const links = (Array.isArray(td.links) ? td.links : []).slice(0, 20);
  const support = typeof td.support === 'string' ? td.support : '';
  return html`<${Card} title=${t('About')}><${Facts} items=${[
    [t('Reference'), html`<${ID} value=${agent.ref} />`],
    [t('Owner'), html`<${ID} value=${agent.owner} />`],
    [t('Types'), types.length > 0 && html`<span class="words">${types.map((x) => html`<code key=${x}>${clean(x, 60)}</code>`)}</span>`],
    [t('Capabilities'), agent.capabilities?.length > 0 && html`<span class="words">${agent.capabilities.slice(0, 40).map((c) => html`<a key=${c} href=${href('agents', '', { capability: c })}>${clean(c, 100)}</a>`)}</span>`],
    [t('Support'), support && html`<${Outside} address=${support} />`],
    [t('Links'), links.length > 0 && html`<span class="words">${links.map((l, i) => html`<${Outside} key=${i} address=${l?.href} rel=${l?.rel} />`)}</span>`],
  ]} /></${Card}>`;
}

/** Outside is an address of a description: a link if it is https, else its text. */
function Outside({ address, rel }) {
  const open = link(address);
  const text = `${rel ? `${clean(rel, 30)}: ` : ''}${clean(address, 120)}`;
  return open ? html`<a href=${open} target="_blank" rel="noreferrer noopener">${text}</a>` : html`<code class="clip">${text}</code>`;
}

function Raw({ data }) {
  const [open, setOpen] = useState('');
  const text = useMemo(() => (open === 'td' ? JSON.stringify(data.td, null, 2) : open === 'record' ? String(data.record ?? '') : ''), [open, data]);
  const shown = useMemo(() => clean(text, 200_000), [text]);
  return html`<${Card} title=${t('Thing Description')} testid="raw">
    <div class="buttons"><${Button} aria-expanded=${open === 'td' ? 'true' : 'false'} onClick=${() => setOpen(open === 'td' ? '' : 'td')} data-testid="raw-td">${t('Show the description')}</${Button}>
      <${Button} aria-expanded=${open === 'record' ? 'true' : 'false'} onClick=${() => setOpen(open === 'record' ? '' : 'record')}>${t('Show the record')}</${Button}></div>
    ${open && html`<div class="value"><div class="value-head"><span class="muted">${bytes(text.length)}</span><${Copy} text=${text} label=${t('Thing Description')} /></div>
      <pre class="answer-text" tabindex="0" role="group" aria-label=${t('Text')} data-testid="raw-text">${shown}</pre></div>`}
  </${Card}>`;
}

function Withdraw({ agent, onClose, onGone }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const act = async () => {
    setBusy(true);
    try {
      await send('DELETE', `v1/agents/${seg(agent.ref)}`);
      onGone(agent);
      onClose();
    } catch (err) {
      setError(err);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${t('Withdraw {name}?', { name: clean(agent.name, 60) })} onClose=${onClose} testid="withdraw-dialog">
    <p>${t('The mesh is notified that the agent is gone. Its program is not stopped.')}</p>
    ${error && html`<${Failure} error=${error} />`}
    <div class="buttons"><${Button} kind="danger" busy=${busy} onClick=${act} data-testid="withdraw-confirm">${t('Withdraw')}</${Button}><${Button} onClick=${onClose}>${t('Keep')}</${Button}></div>
  </${Dialog}>`;
}

// ---- What it does ----

function Affordances({ title: heading, list, one, wanted = '', testid, tools }) {
  const [filter, setFilter] = useState('');
  const [limit, setLimit] = useState(page);
  const id = useId();
  if (!list.length) return null;
  const words = filter.trim().toLowerCase();
  const matching = words ? list.filter(([name, x]) => `${name} ${typeof x.title === 'string' ? x.title : ''} ${typeof x.description === 'string' ? x.description.slice(0, 500) : ''}`.toLowerCase().includes(words)) : list;
  const shown = matching.slice(0, limit);
  const chosen = list.find(([name]) => name === wanted);
  if (chosen && !shown.includes(chosen) && !words) shown.unshift(chosen);
  return html`<${Card} title=${heading} sub=${num(list.length)} testid=${testid}>
    ${(tools || list.length > 12) && html`<div class="affordance-tools">
      ${list.length > 12 && html`<label class="visually-hidden" for=${id}>${t('Filter {name}', { name: heading })}</label><input id=${id} class="input" type="search" placeholder=${t('Filter')} value=${filter} onInput=${(event) => setFilter(event.currentTarget.value)} />`}${tools}</div>`}
    ${shown.map((entry) => one(entry, entry[0] === wanted || (!wanted && testid === 'actions' && entry === list[0])))}
    ${matching.length > shown.length && html`<${Button} onClick=${() => setLimit(limit + page)}>${t('Show {n} more', { n: num(Math.min(page, matching.length - shown.length)) })}</${Button}>`}
  </${Card}>`;
}

/** Affordance is an action, a property or an event that opens. */
function Affordance({ name, of: a, badges, open: initial, children, testid }) {
  const [open, setOpen] = useState(initial);
  const id = useId();
  const heading = clean(typeof a.title === 'string' && a.title ? a.title : name, 120);
  return html`<section class="affordance" data-testid=${testid} data-name=${clean(name, 100)} data-open=${open ? 'true' : 'false'}>
    <div class="affordance-head"><h3><button type="button" class="disclose" aria-expanded=${open ? 'true' : 'false'} aria-controls=${id} onClick=${() => setOpen(!open)}>${heading}</button></h3>
      ${heading !== name && html`<code class="muted clip">${clean(name, 80)}</code>`}${badges}</div>
    ${typeof a.description === 'string' && a.description && html`<p class="affordance-text">${clean(a.description, open ? 2000 : 160)}</p>`}
    <div id=${id} class="affordance-body">${open && children}</div>
  </section>`;
}

/** useVariables makes the form of the URI variables: they are parameters of the request. */
function useVariables(td, own) {
  return useMemo(() => {
    const all = { ...(isObject(td.uriVariables) ? td.uriVariables : {}), ...(isObject(own.uriVariables) ? own.uriVariables : {}) };
    return Object.keys(all).length ? new Form({ type: 'object', properties: all }) : null;
  }, []);
}

function variablesOf(form) {
  if (!form) return { variables: [], errors: [] };
  const { text, errors } = form.body();
  const value = text === undefined ? {} : JSON.parse(text);
  return { variables: Object.entries(value).map(([k, v]) => [k, typeof v === 'string' ? v : JSON.stringify(v)]), errors };
}

// mediaOf returns the media type of an input that is not JSON, or ''.
function mediaOf(affordance) {
  const forms = Array.isArray(affordance.forms) ? affordance.forms : [];
  const own = forms.map((form) => form?.contentType).find((x) => typeof x === 'string') ?? '';
  const media = own.split(';')[0].trim().toLowerCase();
  if (!media || media === 'application/json' || media.endsWith('+json') || media === 'application/cbor' || isObject(affordance.input)) return '';
  return /^[\w!#$&^.+-]+\/[\w!#$&^.+-]+$/.test(media) ? own.slice(0, 200) : '';
}

function newKey() {
  // randomUUID is missing where the page is no secure context.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0')).join('');
}

/** useAsk is the policy of this browser: ask before actions that are neither safe nor idempotent. */
function useAsk() {
  const [ask, setAsk] = useState(() => {
    try {
      return localStorage.getItem('lmosd-ask') === 'yes';
    } catch {
      return false;
    }
  });
  const set = (value) => {
    setAsk(value);
    try {
      if (value) localStorage.setItem('lmosd-ask', 'yes');
      else localStorage.removeItem('lmosd-ask');
    } catch {
      // Not kept.
    }
  };
  return [ask, set];
}

function Action({ agent, td, name, action, open, via, ask, text, first }) {
  const media = mediaOf(action);
  const form = useMemo(() => {
    const made = new Form(isObject(action.input) || action.input === false ? action.input : undefined);
    const at = text ? made.firstText() : null;
    if (at) {
      at.text = text;
      at.on = true;
    }
    return made;
  }, []);
  const variables = useVariables(td, action);
  const [file, setFile] = useState(null);
  const [run, setRun] = useState(null);
  const [problems, setProblems] = useState([]);
  const [confirm, setConfirm] = useState(false);
  const [, draw] = useState(0);
  const running = useRef(null);
  const [copied, setCopied] = useState(false);
  useEffect(() => () => running.current?.abort(), []);

  const call = async () => {
    if (!may('call') || running.current) return;
    const { text: input, errors } = media ? { text: undefined, errors: [] } : form.body();
    const { variables: params, errors: wrong } = variablesOf(variables);
    setProblems([...errors, ...wrong]);
    if (errors.length || wrong.length) return;
    if (ask && !confirm && action.safe !== true && action.idempotent !== true) {
      setConfirm(true);
      return;
    }
    setConfirm(false);
    const controller = new AbortController();
    running.current = controller;
    const answer = new Answer();
    const state = { answer, task: null, error: null, timing: null, callId: '', record: null };
    setRun(state);
    announce(t('The call has started'));
    const changed = () => draw((n) => n + 1);
    try {
      const headers = { Accept: '*/*, application/x-ndjson;q=0.9', 'Lmos-Timing': '1', Prefer: 'lmos-input', 'Idempotency-Key': newKey() };
      if (via) headers['Lmos-Via'] = via;
      if (media) headers['Content-Type'] = media;
      const response = await request(`things/${seg(agent.ref)}/actions/${seg(name)}`, {
        method: 'POST', body: media ? file ?? undefined : input, params: Object.fromEntries(params), headers, signal: controller.signal,
      });
      state.timing = parseTiming(response.headers.get('Server-Timing'));
      state.callId = response.headers.get('Lmos-Call-Id') ?? '';
      if (response.status === 201) {
        state.task = taskOf(JSON.parse((await response.text()).slice(0, 4 << 20)), agent.ref, agent.name, name, response.headers.get('Location') ?? '');
        answer.end('completed');
      } else {
        await receive(response, answer, changed);
        answer.end('completed');
      }
      announce(t('The answer is complete'));
    } catch (error) {
      if (controller.signal.aborted) {
        answer.end('canceled');
      } else {
        answer.end('failed', error);
        // A stream that breaks off throws an error of the browser.
        state.error = error.code !== undefined ? error : { title: t('The answer broke off'), detail: clean(error?.message, 300) };
        if (error.errors?.length) setProblems(error.errors);
        announce(t('The call has failed'));
      }
    } finally {
      running.current = null;
      changed();
    }
    if (state.callId && may('admin')) {
      try {
        state.record = await get(`v1/calls/${seg(state.callId)}`);
        changed();
      } catch {
        // The header has the stages.
      }
    }
  };
  const cancel = () => running.current?.abort();

  const badges = html`${action.safe === true && html`<${Badge} tone="good" title=${t('The description says that it changes nothing.')} testid="safe">${t('safe')}</${Badge}>`}
    ${action.idempotent === true && action.safe !== true && html`<${Badge}>${t('idempotent')}</${Badge}>`}
    ${action.synchronous === false && html`<${Badge} tone="info">${t('task')}</${Badge}>`}
    ${action['lmosd:requiresInput'] === true && html`<${Badge} tone="info">${t('may ask')}</${Badge}>`}`;
  const busy = running.current !== null;
  const failed = run?.error;
  const buttons = html`<div class="buttons">
    ${may('call') ? html`<button type="submit" class="button primary" disabled=${busy} aria-busy=${busy ? 'true' : undefined} data-testid="call">${t('Call')}</button>` : ''}
    ${busy && html`<${Button} kind="danger" icon="close" onClick=${cancel} data-testid="cancel">${t('Cancel')}</${Button}>`}
    <${Button} kind="quiet" icon="copy" aria-expanded=${copied ? 'true' : 'false'} onClick=${() => setCopied(!copied)} data-testid="copy-as">${t('Copy as')}</${Button}>
  </div>`;
  return html`<${Affordance} name=${name} of=${action} badges=${badges} open=${open || Boolean(text && first)} testid="action">
    ${variables && html`<${SchemaForm} form=${variables} problems=${problems} label=${t('Variables of {name}', { name: clean(name, 60) })} onSubmit=${call} onChange=${() => draw((n) => n + 1)} />`}
    ${media
      ? html`<form class="schema-form" onSubmit=${(event) => { event.preventDefault(); call(); }}><${MediaInput} media=${media} onChange=${setFile} />${buttons}</form>`
      : html`<${SchemaForm} form=${form} problems=${problems} label=${t('Input of {name}', { name: clean(name, 60) })} onSubmit=${call} onChange=${() => draw((n) => n + 1)} testid="action-form">${buttons}</${SchemaForm}>`}
    ${!may('call') && html`<${SignIn} rights="call" />`}
    ${copied && html`<${CopyAs} request=${{ ref: agent.ref, name, op: 'invoke', input: media ? (typeof file === 'string' ? file : undefined) : form.body().text, contentType: media, variables: variablesOf(variables).variables }} />`}
    ${confirm && html`<${Dialog} title=${t('Call {name}?', { name: clean(name, 60) })} onClose=${() => setConfirm(false)} testid="confirm-call"><p>${t('The description does not say that a second call has no further effect.')}</p>
      <div class="buttons"><${Button} kind="primary" onClick=${call} data-testid="confirm">${t('Call')}</${Button}><${Button} onClick=${() => setConfirm(false)}>${t('Do not call')}</${Button}></div></${Dialog}>`}
    ${run && html`${failed && html`<${Failure} error=${failed} />`}
      ${(run.answer.status !== 'failed' || run.answer.bytes > 0) && !run.task && html`<${AnswerView} answer=${run.answer} version=${run.answer.version} name=${name} />`}
      ${run.task && html`<${FollowedTask} key=${run.task.id} first=${run.task} />`}
      ${run.answer.status !== 'running' && !failed && html`<${CallTrace} run=${run} record=${run.record} />`}`}
  </${Affordance}>`;
}

function CallTrace({ run }) {
  const call = run.record ?? { ...run.timing, first_ms: run.answer.first, took_ms: run.task ? undefined : run.answer.took };
  const path = run.record?.via || run.timing?.path;
  return html`<div class="trace" data-testid="trace"><${Waterfall} call=${call} />
    ${path && html`<p class="muted">${t('way: {path}', { path: clean(path, 120) })}${run.record?.host && html` · ${t('host {node}', { node: shortDID(run.record.host) })}`}${run.record?.trace_id && html` · ${t('trace')} <code>${clean(run.record.trace_id, 40)}</code>`}
      ${run.callId && may('admin') && html` · <a href=${href('calls', run.callId)}>${t('call')}</a>`}</p>`}</div>`;
}

function MediaInput({ media, onChange }) {
  const id = useId();
  const text = media.startsWith('text/');
  return html`<div class="field"><label for=${id}>${t('Input of type {type}', { type: clean(media, 80) })}</label>
    ${text
      ? html`<textarea id=${id} rows="4" onInput=${(event) => onChange(event.currentTarget.value || null)} data-testid="media-text"></textarea>`
      : html`<input id=${id} type="file" onChange=${(event) => onChange(event.currentTarget.files?.[0] ?? null)} data-testid="media-file" />`}</div>`;
}

const languages = { lmosd: ['lmosd', lmosd], curl: ['curl', curl], python: ['Python', python], js: ['JavaScript', javascript] };

/** CopyAs shows an interaction as a command line or as source text. */
function CopyAs({ request: r }) {
  const [as, setAs] = useState('lmosd');
  const text = languages[as][1](r, base.href);
  return html`<div class="copy-as" data-testid="copy-as-panel"><${Segments} label=${t('Copy as')} value=${as} onChange=${setAs} options=${Object.entries(languages).map(([id, [name]]) => [id, name])} />
    <div class="value"><div class="value-head"><span class="muted">${languages[as][0]}</span><${Copy} text=${text} label=${languages[as][0]} /></div>
      <pre class="answer-text" tabindex="0" role="group" aria-label=${languages[as][0]} data-testid="copy-text">${clean(text, 200_000)}</pre></div></div>`;
}

// ---- Properties ----

function Property({ agent, td, name, property, open, via }) {
  const form = useMemo(() => {
    const { forms, uriVariables, observable, readOnly, writeOnly, title: heading, description, ...schema } = property;
    return new Form(schema);
  }, []);
  const variables = useVariables(td, property);
  const [value, setValue] = useState(undefined);
  const [error, setError] = useState(null);
  const [problems, setProblems] = useState([]);
  const [busy, setBusy] = useState('');
  const [editing, setEditing] = useState(false);
  const [copied, setCopied] = useState(false);
  const feed = useFeed(`things/${seg(agent.ref)}/properties/${seg(name)}`);
  const can = (op) => !Array.isArray(property.forms) || property.forms.length === 0 || property.forms.some((f) => !f?.op || [].concat(f.op).includes(op));
  const readable = property.writeOnly !== true && can('readproperty');
  const writable = property.readOnly !== true && can('writeproperty');
  const observable = property.observable === true;
  const path = `things/${seg(agent.ref)}/properties/${seg(name)}`;
  const headers = via ? { 'Lmos-Via': via } : {};
  const read = async () => {
    setBusy('read');
    setError(null);
    const { variables: params } = variablesOf(variables);
    const answer = new Answer();
    try {
      const response = await request(path, { params: Object.fromEntries(params), headers: { ...headers, Accept: '*/*' } });
      await receive(response, answer, () => {});
      answer.end('completed');
      setValue(answer);
      announce(t('The value is read'));
    } catch (err) {
      setError(err);
    }
    setBusy('');
  };
  const write = async () => {
    const { text, errors } = form.body();
    setProblems(errors);
    setError(null);
    if (errors.length) return;
    if (text === undefined) {
      setProblems([{ field: '', description: t('A value is missing.') }]);
      return;
    }
    setBusy('write');
    try {
      await send('PUT', path, text, { params: Object.fromEntries(variablesOf(variables).variables), headers: { ...headers, 'Content-Type': 'application/json' } });
      announce(t('The value is written'));
      setEditing(false);
      if (readable) await read();
    } catch (err) {
      setError(err);
      if (err.errors?.length) setProblems(err.errors);
    }
    setBusy('');
  };
  const badges = html`${property.readOnly === true && html`<${Badge}>${t('read only')}</${Badge}>`}${property.writeOnly === true && html`<${Badge}>${t('write only')}</${Badge}>`}
    ${observable && html`<${Badge} tone="info">${t('observable')}</${Badge}>`}${typeof property.type === 'string' && html`<code class="muted">${clean(property.type, 20)}</code>`}`;
  const edit = () => {
    if (!editing && value?.kind === 'json' && !value.cut) {
      form.json = true;
      form.text = value.text;
      form.showForm();
    }
    setEditing(!editing);
  };
  return html`<${Affordance} name=${name} of=${property} badges=${badges} open=${open} testid="property">
    ${variables && html`<${SchemaForm} form=${variables} label=${t('Variables of {name}', { name: clean(name, 60) })} onSubmit=${read} />`}
    ${may('call')
      ? html`<div class="buttons">
          ${readable && html`<${Button} busy=${busy === 'read'} onClick=${read} data-testid="read">${t('Read')}</${Button}>`}
          ${writable && html`<${Button} aria-expanded=${editing ? 'true' : 'false'} onClick=${edit} data-testid="edit">${t('Write')}</${Button}>`}
          ${observable && html`<${Button} icon=${feed.running ? 'pause' : 'play'} onClick=${() => feed.toggle({ params: Object.fromEntries(variablesOf(variables).variables), headers })} data-testid="observe">${feed.running ? t('Stop') : t('Observe')}</${Button}>`}
          <${Button} kind="quiet" icon="copy" aria-expanded=${copied ? 'true' : 'false'} onClick=${() => setCopied(!copied)}>${t('Copy as')}</${Button}></div>`
      : html`<${SignIn} rights="call" />`}
    ${copied && html`<${CopyAs} request=${{ ref: agent.ref, name, op: feed.running ? 'observe' : editing ? 'write' : 'read', input: editing ? form.body().text ?? '' : undefined, variables: variablesOf(variables).variables }} />`}
    ${error && html`<${Failure} error=${error} />`}
    ${value && html`<${AnswerView} answer=${value} version=${value.version} name=${name} />`}
    ${editing && may('call') && html`<${SchemaForm} form=${form} problems=${problems} label=${t('New value of {name}', { name: clean(name, 60) })} onSubmit=${write} testid="property-form">
      <div class="buttons"><button type="submit" class="button primary" disabled=${busy === 'write'} data-testid="write">${t('Write')}</button></div></${SchemaForm}>`}
    <${FeedView} feed=${feed} label=${t('Values')} />
  </${Affordance}>`;
}

// ---- Events ----

function Event({ agent, td, name, event, open }) {
  const variables = useVariables(td, event);
  const subscription = useMemo(() => (isObject(event.subscription) ? new Form(event.subscription) : null), []);
  const [problems, setProblems] = useState([]);
  const [copied, setCopied] = useState(false);
  const feed = useFeed(`things/${seg(agent.ref)}/events/${seg(name)}`);
  const toggle = () => {
    const { text, errors } = subscription ? subscription.body() : { text: undefined, errors: [] };
    setProblems(errors);
    if (errors.length) return;
    feed.toggle({ params: Object.fromEntries(variablesOf(variables).variables), body: text, method: text === undefined ? 'GET' : 'POST' });
  };
  return html`<${Affordance} name=${name} of=${event} open=${open} testid="event">
    ${variables && html`<${SchemaForm} form=${variables} label=${t('Variables of {name}', { name: clean(name, 60) })} onSubmit=${toggle} />`}
    ${subscription && html`<${SchemaForm} form=${subscription} problems=${problems} label=${t('Subscription to {name}', { name: clean(name, 60) })} onSubmit=${toggle} />`}
    ${may('call')
      ? html`<div class="buttons"><${Button} icon=${feed.running ? 'pause' : 'play'} onClick=${toggle} data-testid="listen">${feed.running ? t('Stop') : t('Listen')}</${Button}>
          <${Button} kind="quiet" icon="copy" aria-expanded=${copied ? 'true' : 'false'} onClick=${() => setCopied(!copied)}>${t('Copy as')}</${Button}></div>`
      : html`<${SignIn} rights="call" />`}
    ${copied && html`<${CopyAs} request=${{ ref: agent.ref, name, op: 'listen', variables: variablesOf(variables).variables }} />`}
    <${FeedView} feed=${feed} label=${t('Events')} />
  </${Affordance}>`;
}

// The values that a feed keeps, and what it shows of one.
const feedLength = 100;
const feedText = 4000;

/** useFeed reads server-sent events of an agent while they are wanted and the page is visible; after a pause it resumes after the last one. */
function useFeed(path) {
  const [state, setState] = useState({ running: false, error: null, items: [], count: 0 });
  const control = useRef(null); // {controller, options, lastId, items, count} of the feed that is wanted
  const stop = () => {
    control.current?.controller?.abort();
    control.current = null;
  };
  useEffect(() => {
    const seen = () => {
      const feed = control.current;
      if (!feed) return;
      if (document.hidden) feed.controller.abort();
      else if (feed.controller.signal.aborted) read(feed);
    };
    document.addEventListener('visibilitychange', seen);
    return () => {
      document.removeEventListener('visibilitychange', seen);
      stop();
    };
  }, []);
  const read = async (feed) => {
    const controller = new AbortController();
    feed.controller = controller;
    let frame = 0;
    const draw = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        if (control.current === feed) setState({ running: true, error: null, items: feed.items, count: feed.count });
      });
    };
    setState({ running: true, error: null, items: feed.items, count: feed.count });
    let failure = null;
    try {
      await stream(path, {
        ...feed.options, headers: { ...feed.options.headers, ...(feed.lastId && { 'Last-Event-ID': feed.lastId }) }, signal: controller.signal,
        onEvent: ({ id, event, data }) => {
          if (event === 'lmosd:problem') throw new Problem(isObject(data) ? data : {});
          feed.lastId = id || feed.lastId;
          feed.count++;
          feed.items = [{ n: feed.count, at: Date.now(), text: (typeof data === 'string' ? data : JSON.stringify(data) ?? '').slice(0, feedText) }, ...feed.items].slice(0, feedLength);
          draw();
        },
      });
    } catch (error) {
      if (!controller.signal.aborted && !isAbort(error)) failure = error;
    }
    // The page is hidden: the feed is still wanted. Or another one has begun.
    if (control.current && (control.current !== feed || controller.signal.aborted)) return;
    control.current = null;
    setState({ running: false, error: failure, items: feed.items, count: feed.count });
  };
  const toggle = (options) => {
    if (control.current) {
      stop();
      return;
    }
    control.current = { controller: null, options, lastId: '', items: [], count: 0 };
    read(control.current);
  };
  return { ...state, toggle };
}

function FeedView({ feed, label }) {
  if (!feed.running && !feed.count && !feed.error) return null;
  return html`<div class="feed" data-testid="feed" data-status=${feed.running ? 'live' : 'ended'} data-count=${feed.count}>
    ${feed.error && html`<${Failure} error=${feed.error} />`}
    <p class="muted" role="status">${feed.running ? t('Listening') : t('Ended')} · ${num(feed.count)}</p>
    ${feed.items.length > 0 && html`<div class="feed-list" tabindex="0" role="group" aria-label=${label}><ol>${feed.items.map((item) => html`<li key=${item.n}><time>${time(item.at)}</time><pre>${clean(item.text, feedText)}</pre></li>`)}</ol></div>`}
  </div>`;
}
