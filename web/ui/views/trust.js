// The view Trust: organizations, credentials, groups, invitations that wait, what callers may do, and the audit log.
import { html, useEffect, useId, useMemo, useState } from '../vendor/preact.js';
import { Ago, Badge, Button, Card, Command, Copy, Dialog, Dot, Facts, Failure, Field, Heading, ID, Needs, Resource, Segments, State, Table, announce, tableName } from '../ui.js';
import { may, status, useResource } from '../state.js';
import { shell } from '../steps.js';
import { get, seg, send } from '../api.js';
import { go, href } from '../router.js';
import { at, clean, date, num, plural, shortDID, t } from '../words.js';

const tabs = { organizations: 'Organizations', invitations: 'Invitations', access: 'Access', audit: 'Audit' };
const orgStates = {
  confirmed: ['good', 'confirmed'],
  unconfirmed: ['warn', 'unconfirmed'],
  expired: ['bad', 'expired'],
  ended: ['bad', 'ended'],
};
const partnerStates = {
  partner: ['good', 'partner'],
  unconfirmed: ['warn', 'unconfirmed'],
  suspended: ['bad', 'suspended'],
  expired: ['bad', 'expired'],
};
const groupStates = { active: ['good', 'active'], invited: ['warn', 'invited'], left: ['', 'left'], removed: ['bad', 'removed'], dissolved: ['', 'dissolved'] };

function StateBadge({ table, state }) {
  const [tone, text] = table[state] ?? ['', ''];
  return html`<${Badge} tone=${tone}>${text ? t(text) : clean(state, 30)}</${Badge}>`;
}

/** Until is the end of something: how far away it is, and in color if that is soon or past. */
function Until({ value, none }) {
  const d = date(value);
  if (!d) return html`<span class="nowrap">${none ?? t('without limit')}</span>`;
  const left = d.getTime() - Date.now();
  return html`<${Badge} tone=${left < 0 ? 'bad' : left < 3_600_000 ? 'warn' : ''} title=${at(d)}><${Ago} value=${d} /></${Badge}>`;
}

async function orNone(path, options) {
  try {
    return await get(path, options);
  } catch (err) {
    if (err.status === 404) return null;
    throw err;
  }
}

// A node without an organization answers 404, which a browser logs as an error. The standing of the node tells whether it has one.
async function ownOrganization(ask) {
  const self = status.peek()?.did;
  if (self) {
    const standing = await ask(`v1/trust/standing/${seg(self)}`);
    if (standing && !standing.roles?.length && !standing.organization) return null;
  }
  return ask('v1/org');
}

/** loadTrust returns what the rights of the page allow to see: all in one document, or what every reader may see. */
async function loadTrust(path, options) {
  if (may('admin')) return { ...(await get(path, options)), full: true };
  const asked = (p) => orNone(p, options).catch((err) => {
    if (err.denied) return null;
    throw err;
  });
  const [organization, partners, groups] = await Promise.all([ownOrganization(asked), asked('v1/trust/partners'), asked('v1/groups')]);
  const waiting = (partners?.items ?? []).filter((p) => p.state === 'unconfirmed' || p.state === 'suspended')
    .map((p) => ({ kind: 'partner', name: p.name, did: p.did, scid: p.scid, words: p.words, state: p.state }));
  return { organization, partners: partners?.items ?? [], groups: groups?.items ?? [], waiting, issuers: [], credentials: [], invitations: [], full: false };
}

export default function Trust({ route }) {
  const wanted = route.query.get('tab') ?? '';
  const tab = Object.hasOwn(tabs, wanted) ? wanted : 'organizations';
  const trust = useResource('v1/trust', { load: loadTrust, on: 'trust', pace: 1000, every: 15_000 });
  const waiting = trust.data?.waiting?.length ?? 0;
  const options = Object.entries(tabs).map(([id, text]) => [id, id === 'invitations' && waiting > 0 ? `${t(text)} · ${num(waiting)}` : t(text)]);
  // On a phone the switch is wider than the page.
  useEffect(() => document.querySelector('[data-testid="trust-tab"] [aria-pressed="true"]')?.scrollIntoView({ inline: 'nearest', block: 'nearest' }), [tab]);
  const views = {
    organizations: () => html`<${Resource} of=${trust} rights="read" testid="trust">${(d) => html`<${Organizations} trust=${d} />`}</${Resource}>`,
    invitations: () => html`<${Resource} of=${trust} rights="read" testid="trust">${(d) => html`<${Invitations} trust=${d} reload=${trust.reload} />`}</${Resource}>`,
    access: () => html`<${Access} trust=${trust.data} query=${route.query} />`,
    audit: () => html`<${Audit} />`,
  };
  return html`<${Heading} title=${t('Trust')}><${Segments} label=${t('Part of this view')} value=${tab} options=${options} testid="trust-tab"
      onChange=${(next) => go(href('trust', '', { tab: next === 'organizations' ? '' : next }), { replace: true })} /></${Heading}>
    ${tab === 'organizations' && waiting > 0 && html`<p class="row"><${Badge} tone="warn">${t('Waiting')}</${Badge}><a href=${href('trust', '', { tab: 'invitations' })}>${t('{count} without a decision', { count: plural(waiting, 'invitation') })}</a></p>`}
    ${views[tab]()}`;
}

// ---- Organizations ----

function Organizations({ trust }) {
  const o = trust.organization;
  return html`<${Own} org=${o} />
    <${Partners} partners=${trust.partners ?? []} />
    <div class="columns wide"><${Groups} groups=${trust.groups ?? []} /><${Credentials} trust=${trust} /></div>
    ${o?.members && html`<${Members} members=${o.members} />`}`;
}

function Own({ org }) {
  if (!org) {
    return html`<${Card} title=${t('Own organization')} testid="trust-own"><${State} status="empty" title=${t('This node is a member of no organization.')} commands=${['lmosd org init acme.example', 'lmosd org join lmos-invite:…']}>
      <p>${t('The nodes of one organization may call each other. It needs no server and no account.')}</p></${State}></${Card}>`;
  }
  return html`<${Card} title=${t('Own organization')} testid="trust-own">
    <${Facts} items=${[
      [t('Name'), html`${clean(org.name, 120)} <span class="muted">${t('a claim of its log')}</span>`],
      [t('State'), html`<${StateBadge} table=${orgStates} state=${org.state} />`],
      ['SCID', html`<${ID} value=${org.scid} short=${false} />`],
      [t('DID'), html`<${ID} value=${org.did} short=${false} />`],
      [t('Roles of this node'), org.roles?.length > 0 && org.roles.map((r) => html`<${Badge} key=${r}>${clean(r, 60)}</${Badge}> `)],
      [t('Credential ends'), html`<${Until} value=${org.until} none=${t('no credential')} />`],
      [t('Keys'), [org.issuer && t('issuing key'), org.root && t('root key')].filter(Boolean).join(', ') || t('none on this node')],
      [t('Newest entry'), html`<code class="trust-hash">${clean(org.head, 120)}</code>`],
    ]} />
    ${(org.issuers ?? []).length > 0 && html`<h3>${plural(org.issuers.length, 'issuer')}</h3><${Table} caption=${tableName(t('Issuers'))} rows=${org.issuers} rowKey=${(i) => i.method} columns=${[
      { id: 'method', title: t('Key'), cell: (i) => html`<code>${clean(i.method, 20)}</code>` },
      { id: 'node', title: t('Node'), cell: (i) => (i.this ? t('This node') : i.node ? html`<${ID} value=${i.node} />` : t('unknown')), wide: true },
      { id: 'list', title: t('Status list'), cell: (i) => (i.list_version ? html`<span class="nowrap"><${Ago} value=${i.list_from} /></span>` : t('none received')) },
    ]} />`}
    ${org.issuer && org.issuers?.length === 1 && html`<p class="muted">${t('There is one issuer. If it fails, credentials end and nothing can be revoked: a second one prevents that.')} <${Command} text="lmosd org issuer add NODE" /></p>`}
  </${Card}>`;
}

function Members({ members }) {
  return html`<${Card} title=${t('Members')} sub=${plural(members.length, 'node')} flush testid="trust-members"><${Table} caption=${tableName(t('Members'))} rows=${members} rowKey=${(m) => m.did} sort="node" limit=${300} columns=${[
    { id: 'node', title: t('Node'), value: (m) => m.name || m.did, cell: (m) => html`${m.name ? html`${clean(m.name, 60)} ` : ''}<${ID} value=${m.did} />`, wide: true },
    { id: 'roles', title: t('Roles'), value: (m) => (m.roles ?? []).join(' '), cell: (m) => clean((m.roles ?? []).join(', '), 120) || '–' },
    { id: 'until', title: t('Credential ends'), value: (m) => Date.parse(m.until), cell: (m) => (date(m.revoked) ? html`<${Badge} tone="bad">${t('revoked')}</${Badge}>` : html`<${Until} value=${m.until} />`) },
    { id: 'connected', title: t('Connected'), value: (m) => (m.connected ? 0 : 1), cell: (m) => html`<span class="nowrap"><${Dot} tone=${m.connected ? 'good' : ''} /> ${t(m.connected ? 'yes' : 'no')}</span>`, hide: true },
  ]} /></${Card}>`;
}

function Words({ words }) {
  if (!words?.length) return '–';
  return html`<ol class="trust-words" aria-label=${t('Check words')}>${words.map((w, i) => html`<li key=${i}>${clean(w, 30)}</li>`)}</ol>`;
}

function Partners({ partners }) {
  return html`<${Card} title=${t('Partners')} sub=${partners.length > 0 ? plural(partners.length, 'organization') : ''} flush testid="trust-partners">
    ${partners.length === 0
      ? html`<${State} status="empty" title=${t('No other organization is a partner.')} commands=${['lmosd trust invite', 'lmosd trust accept -']}><p>${t('One invitation connects two organizations. Both sides then compare six words.')}</p></${State}>`
      : html`<${Table} caption=${tableName(t('Partners'))} rows=${partners} rowKey=${(p) => p.name} sort="name" columns=${[
        { id: 'name', title: t('Name'), value: (p) => p.name, cell: (p) => html`<strong>${clean(p.name, 60)}</strong><br /><${ID} value=${p.did} />`, wide: true },
        { id: 'state', title: t('State'), value: (p) => p.state, cell: (p) => html`<${StateBadge} table=${partnerStates} state=${p.state} />` },
        { id: 'roles', title: t('Roles that count'), value: (p) => (p.roles ?? []).join(' '), cell: (p) => clean((p.roles ?? []).join(', '), 120) || t('all'), hide: true },
        { id: 'until', title: t('Ends'), value: (p) => Date.parse(p.until) || undefined, cell: (p) => html`<${Until} value=${p.until} />`, hide: true },
        { id: 'connected', title: t('Connected nodes'), value: (p) => p.connected, cell: (p) => num(p.connected), end: true, hide: true },
        { id: 'words', title: t('Check words'), cell: (p) => html`<span class="mono">${clean((p.words ?? []).join(' '), 120) || '–'}</span>`, hide: true },
      ]} />`}
  </${Card}>`;
}

function Groups({ groups }) {
  return html`<${Card} title=${t('Groups')} sub=${groups.length > 0 ? plural(groups.length, 'group') : ''} flush testid="trust-groups">
    ${groups.length === 0
      ? html`<${State} status="empty" title=${t('This node is in no group.')} commands=${['lmosd group create NAME', 'lmosd group join lmos-invite:…']}><p>${t('A group has nodes of any organization as members, for one purpose.')}</p></${State}>`
      : html`<${Table} caption=${tableName(t('Groups'))} rows=${groups} rowKey=${(g) => g.id} sort="name" columns=${[
        { id: 'name', title: t('Name'), value: (g) => g.name, cell: (g) => html`<strong>${clean(g.name, 60)}</strong>${Object.entries(g.labels ?? {}).slice(0, 8).map(([k, v]) => html` <${Badge} key=${k}>${clean(`${k}=${v}`, 60)}</${Badge}>`)}`, wide: true },
        { id: 'state', title: t('State'), value: (g) => g.state, cell: (g) => html`<${StateBadge} table=${groupStates} state=${g.state} />` },
        { id: 'role', title: t('Role'), value: (g) => g.role, cell: (g) => clean(g.role, 40) || '–' },
        { id: 'members', title: t('Members'), value: (g) => g.count, cell: (g) => num(g.count), end: true },
        { id: 'changed', title: t('Changed'), value: (g) => Date.parse(g.changed), cell: (g) => (date(g.changed) ? html`<${Ago} value=${g.changed} />` : '–'), hide: true },
      ]} />`}
  </${Card}>`;
}

function Credentials({ trust }) {
  const issuers = trust.issuers ?? [], credentials = trust.credentials ?? [];
  const content = () => html`
    ${issuers.length + credentials.length === 0 && html`<${State} status="empty" title=${t('No issuer outside of organizations is trusted.')} commands=${['lmosd trust issuer add DID --name NAME --role ROLE']}><p>${t('A credential of such an issuer gives its holder a role here, and nothing else.')}</p></${State}>`}
    ${issuers.length > 0 && html`<${Table} caption=${tableName(t('Issuers of credentials'))} rows=${issuers} rowKey=${(i) => i.name} columns=${[
      { id: 'name', title: t('Issuer'), value: (i) => i.name, cell: (i) => html`<strong>${clean(i.name, 60)}</strong><br /><${ID} value=${i.did} />`, wide: true },
      { id: 'roles', title: t('Roles'), cell: (i) => clean((i.roles ?? []).join(', '), 200) },
    ]} />`}
    ${credentials.length > 0 && html`<${Table} caption=${tableName(t('Credentials'))} rows=${credentials} rowKey=${(c) => c.hash} columns=${[
      { id: 'issuer', title: t('Issuer'), cell: (c) => clean(c.issuer_name || shortDID(c.issuer), 80), wide: true },
      { id: 'subject', title: t('Node'), cell: (c) => (c.held ? t('This node') : html`<${ID} value=${c.subject} />`) },
      { id: 'roles', title: t('Roles'), cell: (c) => clean((c.roles ?? []).join(', '), 120) || '–' },
      { id: 'until', title: t('Ends'), value: (c) => Date.parse(c.until), cell: (c) => html`<${Until} value=${c.until} />` },
    ]} />`}`;
  return html`<${Card} title=${t('Credentials of other issuers')} flush testid="trust-credentials">${trust.full ? content() : html`<${State} status="denied" />`}</${Card}>`;
}

// ---- Invitations ----

function Invitations({ trust, reload }) {
  const waiting = trust.waiting ?? [], open = trust.invitations ?? [];
  return html`<${Card} title=${t('Waiting for a decision')} testid="trust-waiting">
      ${waiting.length === 0
        ? html`<${State} status="empty" title=${t('Nothing waits.')} commands=${['lmosd trust accept -']}><p>${t('An accepted invitation waits here until both sides have compared the words. Nothing is trusted before that.')}</p></${State}>`
        : html`<div class="trust-list">${waiting.map((w) => html`<${Waiting} key=${`${w.kind} ${w.name} ${w.did}`} item=${w} reload=${reload} />`)}</div>`}
    </${Card}>
    <${Card} title=${t('Make an invitation')} testid="trust-invite"><${Needs} rights="admin" title=${t('Making an invitation needs more rights: {rights}.', { rights: t('may change') })}><${Invite} org=${trust.organization} reload=${reload} /></${Needs}></${Card}>
    ${trust.full && html`<${Card} title=${t('Open invitations')} sub=${open.length > 0 ? plural(open.length, 'invitation') : ''} flush testid="trust-open">
      ${open.length === 0 ? html`<${State} status="empty" title=${t('No invitation is open.')} commands=${['lmosd org invite', 'lmosd trust invite']} />` : html`<${Table} caption=${tableName(t('Open invitations'))} rows=${open} rowKey=${(i) => i.id} columns=${[
        { id: 'id', title: t('Invitation'), cell: (i) => html`<code>${clean(i.id, 16)}</code>`, wide: true },
        { id: 'kind', title: t('For'), value: (i) => i.invitation_kind, cell: (i) => html`<span class="nowrap">${t(i.invitation_kind === 'partner' ? 'a partner' : 'a node')}</span>${i.for ? html` <${ID} value=${i.for} />` : ''}` },
        { id: 'roles', title: t('Roles'), cell: (i) => clean((i.roles ?? []).join(', '), 120) || '–', hide: true },
        { id: 'uses', title: t('Uses'), value: (i) => i.uses, cell: (i) => num(i.uses), end: true },
        { id: 'expires', title: t('Ends'), value: (i) => Date.parse(i.expires), cell: (i) => html`<${Until} value=${i.expires} />` },
      ]} />`}
    </${Card}>`}`;
}

const waitingTitles = { partner: 'Partner {name}', 'join-request': 'A node asks to join: {name}', group: 'Group {name} invites this node' };

/** Waiting is a decision of a person: only partners are confirmed here, after their words were compared. */
function Waiting({ item, reload }) {
  const [dialog, setDialog] = useState('');
  const name = clean(item.name, 60) || shortDID(item.did);
  const partner = item.kind === 'partner';
  const suspended = partner && item.state === 'suspended';
  return html`<div class="trust-pending" data-testid="trust-pending" data-kind=${item.kind}>
    <h3>${t(waitingTitles[item.kind] ?? '{name}', { name })} ${item.state && html`<${StateBadge} table=${partnerStates} state=${item.state} />`}</h3>
    <${Facts} items=${[
      ['SCID', item.scid && html`<${ID} value=${item.scid} short=${false} />`],
      [t('DID'), item.did && html`<${ID} value=${item.did} short=${false} />`],
      [t('Check words'), item.words?.length > 0 && html`<${Words} words=${item.words} />`],
      [t('Ends'), date(item.expires) && html`<${Until} value=${item.expires} />`],
    ]} />
    ${suspended && html`<p>${t('Its log has two histories: one of them may be of a thief. Ask its operator which counts, and choose on the host of the node.')}</p><${Command} text=${`lmosd trust confirm ${shell(clean(item.name, 256))} --log VERSION`} />`}
    ${item.kind === 'join-request' && html`<p>${t('Admit it only if its screen shows the same words.')}</p><${Command} text=${`lmosd org admit ${(item.words ?? []).slice(0, 12).map((word) => shell(clean(word, 256))).join(' ')}`} />`}
    ${item.kind === 'group' && html`<${Command} text=${`lmosd group join ${shell(clean(item.name, 256))}`} />`}
    ${partner && (may('admin')
      ? html`<div class="row">${!suspended && html`<${Button} kind="primary" onClick=${() => setDialog('confirm')} data-testid="trust-confirm">${t('Confirm')}</${Button}>`}
        <${Button} kind="danger" onClick=${() => setDialog('discard')} data-testid="trust-discard">${t('Discard')}</${Button}></div>`
      : html`<p class="muted">${t('To confirm or discard it, this page needs more rights.')}</p>`)}
    ${dialog && html`<${Decide} item=${item} name=${name} kind=${dialog} onClose=${() => setDialog('')} onDone=${() => { setDialog(''); reload(); }} />`}
  </div>`;
}

/** Decide asks before a partner is confirmed or discarded. Confirm needs the statement that the words were compared. */
function Decide({ item, name, kind, onClose, onDone }) {
  const id = useId();
  const [compared, setCompared] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const confirm = kind === 'confirm';
  const run = async () => {
    setBusy(true);
    setError(null);
    try {
      await (confirm ? send('POST', `v1/trust/partners/${seg(item.name)}/confirm`, {}) : send('DELETE', `v1/trust/partners/${seg(item.name)}`));
      announce(t(confirm ? 'Confirmed' : 'Discarded'));
      onDone();
    } catch (err) {
      setError(err);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${t(confirm ? 'Confirm {name}?' : 'Discard {name}?', { name })} onClose=${onClose} testid="trust-decide">
    <p>${confirm ? t('Compare the six words with the other side by another channel, for example by telephone. The name and the domain prove nothing.') : t('The partnership ends on this side at once. The other side may still trust the nodes of this one.')}</p>
    <${Words} words=${item.words} />
    <${Facts} items=${[['SCID', html`<code class="trust-hash">${clean(item.scid, 120)}</code>`], [t('DID'), html`<code class="trust-hash">${clean(item.did, 300)}</code>`]]} />
    ${confirm && html`<div class="trust-check"><input type="checkbox" id=${id} checked=${compared} onChange=${(e) => setCompared(e.currentTarget.checked)} data-testid="trust-compared" /><label for=${id}>${t('The other side has the same six words.')}</label></div>`}
    ${error && html`<${Failure} error=${error} />`}
    <div class="row"><${Button} kind=${confirm ? 'primary' : 'danger'} busy=${busy} disabled=${confirm && !compared} onClick=${run} data-testid="trust-decide-yes">${t(confirm ? 'Confirm' : 'Discard')}</${Button}>
      <${Button} kind="quiet" onClick=${onClose}>${t('Cancel')}</${Button}></div>
  </${Dialog}>`;
}

const words = (text) => text.split(/[\s,]+/).filter(Boolean);

function Invite({ org, reload }) {
  const [form, setForm] = useState({ kind: 'node', roles: '', for: '', uses: '1', life: '24h', issuer: false });
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const [made, setMade] = useState(null);
  const issuerId = useId();
  if (!org) return html`<${State} status="empty" title=${t('Only a member of an organization invites.')} commands=${['lmosd org init acme.example']} />`;
  const set = (name) => (event) => setForm({ ...form, [name]: event.currentTarget.type === 'checkbox' ? event.currentTarget.checked : event.currentTarget.value });
  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setError(null);
    setMade(null);
    const body = { kind: form.kind, life: form.life };
    if (words(form.roles).length) body.roles = words(form.roles);
    if (form.for.trim()) body.for = form.for.trim();
    if (Number(form.uses) > 1) body.uses = Number(form.uses);
    if (form.kind === 'node' && form.issuer) body.issuer = true;
    try {
      setMade((await send('POST', 'v1/org/invitations', body)).body);
      announce(t('The invitation is made.'));
      reload();
    } catch (err) {
      setError(err);
    }
    setBusy(false);
  };
  const partner = form.kind === 'partner';
  return html`<form class="stack tight" onSubmit=${submit}>
    <${Segments} label=${t('Who is invited')} value=${form.kind} options=${[['node', t('A node for this organization')], ['partner', t('Another organization')]]} onChange=${(kind) => setForm({ ...form, kind })} />
    <div class="trust-form">
      <${Field} label=${t('Roles')} hint=${t(partner ? 'Those of its roles that count. Empty: all.' : 'Of the new member, separated by spaces.')}>${({ id, describedBy }) => html`<input id=${id} aria-describedby=${describedBy} value=${form.roles} onInput=${set('roles')} autocomplete="off" spellcheck=${false} />`}</${Field}>
      <${Field} label=${t('Valid for')}>${({ id }) => html`<select id=${id} value=${form.life} onChange=${set('life')}>${[['1h', '1 hour'], ['24h', '1 day'], ['168h', '7 days'], ['720h', '30 days']].map(([v, text]) => html`<option key=${v} value=${v} selected=${v === form.life}>${t(text)}</option>`)}</select>`}</${Field}>
      <${Field} label=${t('Uses')}>${({ id }) => html`<input id=${id} type="number" min="1" max="1000" value=${form.uses} onInput=${set('uses')} />`}</${Field}>
      <${Field} label=${t('Only for')} hint=${t(partner ? 'The DID of the organization. It then needs no confirmation here.' : 'The DID of the node. Empty: any holder of the text.')}>${({ id, describedBy }) => html`<input id=${id} aria-describedby=${describedBy} value=${form.for} onInput=${set('for')} placeholder=${partner ? 'did:webvh:…' : 'did:key:…'} autocomplete="off" spellcheck=${false} />`}</${Field}>
      ${!partner && html`<div class="trust-check wide-field"><input type="checkbox" id=${issuerId} checked=${form.issuer} onChange=${set('issuer')} /><label for=${issuerId}>${t('The new member becomes an issuer, too.')}</label></div>`}
    </div>
    <div class="row"><button class="button primary" disabled=${busy} aria-busy=${busy ? 'true' : undefined} data-testid="trust-invite-make">${t('Make the invitation')}</button></div>
    ${error && html`<${Failure} error=${error} />`}
    ${made && html`<div class="stack tight" data-testid="trust-made" data-status="ready">
      <p>${t('Send this text by a private channel. It is shown once: it is a secret until it was used.')}</p>
      <div class="trust-secret"><code data-testid="trust-text">${clean(made.text, 4000)}</code><${Copy} text=${made.text} label=${t('invitation')} /></div>
      <${Facts} items=${[['SCID', html`<${ID} value=${made.scid} short=${false} />`], [t('Uses'), num(made.uses)], [t('Ends'), html`<${Until} value=${made.expires} />`], [t('Command of the other side'), html`<code>${made.invitation_kind === 'partner' ? 'lmosd trust accept -' : 'lmosd org join -'}</code>`]]} />
    </div>`}
  </form>`;
}

// ---- Access ----

function Access({ trust, query }) {
  return html`<${Card} title=${t('Would this caller be allowed?')} testid="trust-why"><${Needs} rights="admin" title=${t('Asking for a decision needs more rights: {rights}.', { rights: t('may change') })}><${Why} trust=${trust} query=${query} /></${Needs}></${Card}>
    ${may('admin') && html`<div class="columns wide"><${Tokens} /><${Delegations} issued=${false} /></div><${Delegations} issued=${true} />`}`;
}

const operations = ['invoke', 'read', 'write', 'subscribe', 'find', 'delegate', 'connect', 'store', 'relay'];

function Why({ trust, query }) {
  const [form, setForm] = useState({ who: query.get('who') ?? '', op: query.get('op') ?? 'invoke', on: query.get('on') ?? '', input: '' });
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const [result, setResult] = useState(null);
  const [bad, setBad] = useState('');
  const listId = useId(), thingsId = useId();
  const self = status.value?.did;
  const things = useResource(self ? 'v1/find' : null, { params: { host: self, limit: 100, timeout: '1s' }, on: 'agent', pace: 5000 });
  const callers = useMemo(() => ['anyone', 'own', 'partners', 'local', 'untrusted', ...(trust?.partners ?? []).map((p) => p.name), ...(trust?.groups ?? []).map((g) => `group:${g.name}`)].map((s) => clean(s, 80)), [trust]);
  const own = (things.data?.items ?? []).filter((a) => a.local).map((a) => clean(a.name, 80));
  const set = (name) => (event) => setForm({ ...form, [name]: event.currentTarget.value });
  const submit = async (event) => {
    event.preventDefault();
    if (busy || !form.who.trim()) return;
    const body = { who: form.who.trim(), op: form.op };
    if (form.on.trim()) body.on = form.on.trim();
    setBad('');
    if (form.input.trim()) {
      try {
        body.input = JSON.parse(form.input);
      } catch (err) {
        setBad(t('This is not JSON: {reason}', { reason: clean(err.message, 120) }));
        return;
      }
    }
    setBusy(true);
    setError(null);
    try {
      const { body: answer } = await send('POST', 'v1/trust/why', body);
      setResult(answer);
      announce(t(answer.allow ? 'Allowed' : 'Denied'));
    } catch (err) {
      setResult(null);
      setError(err);
    }
    setBusy(false);
  };
  return html`<form class="stack tight" onSubmit=${submit}>
    <p class="muted">${t('Nothing is called: the node says which rule decides, and why.')}</p>
    <div class="trust-form">
      <${Field} label=${t('Caller')} required hint=${t('anyone, partners, a partner, PARTNER/ROLE, token:NAME, group:NAME or a DID')}>${({ id, describedBy }) => html`<input id=${id} aria-describedby=${describedBy} required value=${form.who} onInput=${set('who')} list=${listId} autocomplete="off" spellcheck=${false} data-testid="why-who" />`}</${Field}>
      <${Field} label=${t('Operation')}>${({ id }) => html`<select id=${id} value=${form.op} onChange=${set('op')} data-testid="why-op">${operations.map((o) => html`<option key=${o} value=${o} selected=${o === form.op}>${o}</option>`)}</select>`}</${Field}>
      <${Field} label=${t('Agent of this node')} hint=${t('NAME, NAME/ACTION or node')}>${({ id, describedBy }) => html`<input id=${id} aria-describedby=${describedBy} value=${form.on} onInput=${set('on')} list=${thingsId} autocomplete="off" spellcheck=${false} data-testid="why-on" />`}</${Field}>
      <${Field} label=${t('Input for conditions')} hint=${t('JSON, only for rules with a condition.')} error=${bad}>${({ id, describedBy, invalid }) => html`<input id=${id} aria-describedby=${describedBy} aria-invalid=${invalid} class="mono" value=${form.input} onInput=${set('input')} placeholder="{}" autocomplete="off" spellcheck=${false} />`}</${Field}>
    </div>
    <datalist id=${listId}>${callers.map((c) => html`<option key=${c} value=${c} />`)}</datalist>
    <datalist id=${thingsId}>${['node', ...new Set(own)].map((c) => html`<option key=${c} value=${c} />`)}</datalist>
    <div class="row"><button class="button primary" disabled=${busy || !form.who.trim()} aria-busy=${busy ? 'true' : undefined} data-testid="why-ask">${t('Explain')}</button></div>
    ${error && html`<${Failure} error=${error} />`}
    ${result && html`<${Decision} result=${result} />`}
  </form>`;
}

function Decision({ result: r }) {
  return html`<div class="stack tight" data-testid="why-result" data-decision=${r.allow ? 'allow' : 'deny'} role="status">
    <p class="trust-decision"><${Badge} tone=${r.allow ? 'good' : 'bad'}>${t(r.allow ? 'Allowed' : 'Denied')}</${Badge}><span>${clean(r.who, 120)} · ${clean(r.op, 20)}${r.thing && ` · ${clean(r.thing, 80)}${r.affordance ? `/${clean(r.affordance, 80)}` : ''}`}</span></p>
    <${Facts} items=${[
      [t('Reason'), clean(r.why, 400)],
      [t('Rule'), r.rule ? html`<code>${clean(r.rule, 120)}</code>` : t('No rule: the relation of the caller decides.')],
      [t('Text of the rule'), r.text && html`<pre>${clean(r.text, 2000)}</pre>`],
      [t('Relation'), clean(r.relation, 40)],
      [t('Error of the caller'), r.code && html`<code>${clean(r.code, 20)}</code>`],
      [t('Condition'), r.conditional && t('A rule with a condition concerns it: input or time may change the decision.')],
    ]} />
    ${(r.principal ?? []).length > 0 && html`<${Table} caption=${tableName(t('What the node takes the caller for'))} rows=${r.principal} rowKey=${(p) => `${p.name} ${p.value} ${p.from}`} columns=${[
      { id: 'name', title: t('Property'), cell: (p) => clean(p.name, 40) },
      { id: 'value', title: t('Value'), cell: (p) => html`<code class="break">${clean(p.value, 300)}</code>`, wide: true },
      { id: 'from', title: t('Known from'), cell: (p) => html`<span class="trust-from">${clean(p.from, 200)}</span>` },
    ]} />`}
  </div>`;
}

function Tokens() {
  const tokens = useResource('v1/tokens', { on: 'trust', every: 30_000 });
  return html`<${Card} title=${t('Access tokens')} flush testid="trust-tokens"><${Resource} of=${tokens} rights="admin" empty=${(d) => (d.items ?? []).length === 0 && !(d.identity_providers ?? []).length && html`<${State} status="empty" title=${t('There is no access token.')} commands=${['lmosd token create NAME --scope call']} />`}>${(d) => html`
    ${d.items.length > 0 && html`<${Table} caption=${tableName(t('Access tokens'))} rows=${d.items} rowKey=${(k) => k.name} sort="name" columns=${[
      { id: 'name', title: t('Name'), value: (k) => k.name, cell: (k) => html`<strong>${clean(k.name, 64)}</strong>`, wide: true },
      { id: 'scopes', title: t('Rights'), value: (k) => (k.scopes ?? []).join(' '), cell: (k) => html`<code class="break">${clean((k.scopes ?? []).join(', '), 300)}</code>` },
      { id: 'roles', title: t('Roles'), cell: (k) => clean((k.roles ?? []).join(', '), 120) || '–', hide: true },
      { id: 'expires', title: t('Ends'), value: (k) => Date.parse(k.expires), cell: (k) => (k.expired ? html`<${Badge} tone="bad">${t('expired')}</${Badge}>` : html`<${Until} value=${k.expires} />`) },
    ]} />`}
    ${(d.identity_providers ?? []).length > 0 && html`<${Table} caption=${tableName(t('Identity providers'))} rows=${d.identity_providers} rowKey=${(p) => p.name} columns=${[
      { id: 'name', title: t('Identity provider'), cell: (p) => html`<strong>${clean(p.name, 60)}</strong> <span class="muted break">${clean(p.issuer, 200)}</span>`, wide: true },
      { id: 'keys', title: t('Keys'), cell: (p) => (p.problem ? html`<${Badge} tone="bad">${clean(p.problem, 200)}</${Badge}>` : num(p.keys)), end: true },
    ]} />`}`}</${Resource}></${Card}>`;
}

function Delegations({ issued }) {
  const list = useResource('v1/delegations', { params: issued ? { issued: true } : undefined, on: 'trust', every: 30_000 });
  const heading = issued ? t('Delegations issued by this node') : t('Delegations');
  return html`<${Card} title=${heading} flush testid=${issued ? 'trust-issued' : 'trust-delegations'}><${Resource} of=${list} rights="admin" empty=${(d) => (d.items ?? []).length === 0 && html`<${State} status="empty" title=${t(issued ? 'This node has issued none that is valid.' : 'Callers of this node have delegated nothing.')} commands=${issued ? [] : ['lmosd delegate AGENT/ACTION --to DID --for 10m']} />`}>${(d) => html`<${Table}
    caption=${tableName(heading)} rows=${d.items} rowKey=${(x) => x.id} columns=${[
      { id: 'right', title: t('Right'), value: (x) => x.agent, cell: (x) => html`${clean(x.op, 20)} <strong>${clean(x.agent || x.thing, 100)}/${clean(x.name, 80)}</strong>${(x.where ?? []).slice(0, 16).map((w) => html` <${Badge} key=${w}>${clean(w, 80)}</${Badge}>`)}`, wide: true },
      issued ? { id: 'by', title: t('From'), value: (x) => x.by, cell: (x) => (x.by ? html`<${ID} value=${x.by} />` : '–') } : { id: 'to', title: t('To'), value: (x) => x.to, cell: (x) => html`<${ID} value=${x.to} />` },
      { id: 'expires', title: t('Ends'), value: (x) => Date.parse(x.expires), cell: (x) => (x.revoking ? html`<${Badge} tone="warn">${t('being revoked')}</${Badge}>` : html`<${Until} value=${x.expires} />`) },
    ]} />`}</${Resource}></${Card}>`;
}

// ---- Audit ----

const ages = { '': 'Any time', '1h': 'Last hour', '24h': 'Last day', '168h': 'Last 7 days' };
const decisions = { '': 'All', allow: 'Allowed', deny: 'Denied' };

function Audit() {
  return html`<${Card} title=${t('Audit log')} flush testid="trust-audit"><${Needs} rights="admin" title=${t('The audit log needs more rights: {rights}.', { rights: t('may change') })}><${AuditLog} /></${Needs}></${Card}>`;
}

function AuditLog() {
  const [filter, setFilter] = useState({ who: '', decision: '', since: '' });
  const [who, setWho] = useState('');
  const audit = useResource('v1/audit', { params: { who: filter.who, decision: filter.decision, since: filter.since, limit: 200 }, on: 'trust', pace: 2000 });
  return html`<form class="toolbar trust-filter" onSubmit=${(e) => { e.preventDefault(); setFilter({ ...filter, who: who.trim() }); }}>
      <${Field} label=${t('Caller')}>${({ id }) => html`<input id=${id} type="search" value=${who} onInput=${(e) => setWho(e.currentTarget.value)} onChange=${(e) => setFilter({ ...filter, who: e.currentTarget.value.trim() })} autocomplete="off" spellcheck=${false} data-testid="audit-who" />`}</${Field}>
      <${Field} label=${t('Time')}>${({ id }) => html`<select id=${id} value=${filter.since} onChange=${(e) => setFilter({ ...filter, since: e.currentTarget.value })}>${Object.entries(ages).map(([v, text]) => html`<option key=${v} value=${v} selected=${v === filter.since}>${t(text)}</option>`)}</select>`}</${Field}>
      <${Field} label=${t('Decision')}>${({ id }) => html`<select id=${id} value=${filter.decision} onChange=${(e) => setFilter({ ...filter, decision: e.currentTarget.value })} data-testid="audit-decision">${Object.entries(decisions).map(([v, text]) => html`<option key=${v} value=${v} selected=${v === filter.decision}>${t(text)}</option>`)}</select>`}</${Field}>
      <${Button} icon="reload" onClick=${audit.reload}>${t('Reload')}</${Button}>
    </form>
    <${Resource} of=${audit} rights="admin" testid="audit">${(d) => html`
      <div class="row trust-head" data-testid="audit-head" data-verified=${d.verified ? 'true' : 'false'}>
        <${Badge} tone=${d.verified ? 'good' : 'bad'}>${t(d.verified ? 'Chain and signatures are intact' : 'Not intact')}</${Badge}>
        ${d.head && html`<span class="muted">${t('Head')}</span><${ID} value=${d.head} short=${false} />`}
      </div>
      ${(d.problems ?? []).length > 0 && html`<ul class="trust-head">${d.problems.slice(0, 20).map((p) => html`<li key=${p} class="error">${clean(p, 300)}</li>`)}</ul>`}
      ${(d.items ?? []).length === 0
        ? html`<${State} status="empty" title=${t('No line of the log matches.')} commands=${['lmosd audit ls']}><p>${t('Refused calls and changes of trust are logged; more by the setting trust.audit.level.')}</p></${State}>`
        : html`<${Table} caption=${tableName(t('Audit log'))} rows=${[...d.items].reverse()} rowKey=${(l) => l.id ?? l.seq} columns=${[
          { id: 'at', title: t('Time'), value: (l) => Date.parse(l.at), cell: (l) => html`<span class="nowrap"><${Ago} value=${l.at} /></span>` },
          { id: 'decision', title: t('Decision'), value: (l) => l.decision ?? '', cell: (l) => (l.decision ? html`<${Badge} tone=${l.decision === 'deny' ? 'bad' : 'good'}>${t(l.decision === 'deny' ? 'denied' : 'allowed')}</${Badge}>` : html`<${Badge}>${clean(l.event, 40) || t('change')}</${Badge}>`) },
          { id: 'who', title: t('Caller'), value: (l) => l.who, cell: (l) => html`<span class="nowrap" title=${clean(l.who, 200)}>${l.who ? shortDID(l.who) : '–'}</span>`, hide: true },
          { id: 'what', title: t('What'), cell: (l) => html`<span class="trust-caller">${l.who ? shortDID(l.who) : ''}</span><span class="break">${[clean(l.action, 30), [clean(l.thing, 100), clean(l.name, 60)].filter(Boolean).join('/'), clean(l.detail, 300)].filter(Boolean).join(' · ') || '–'}</span>${l.times > 1 && html` <span class="muted">× ${num(l.times)}</span>`}`, wide: true },
          { id: 'rule', title: t('Rule'), value: (l) => l.rule, cell: (l) => (l.rule || l.code ? html`<code>${clean(l.rule || l.code, 80)}</code>` : '–'), hide: true },
          { id: 'seq', title: t('Line'), value: (l) => l.seq, cell: (l) => html`<code title=${clean(l.hash, 100)}>${clean(l.id ?? String(l.seq), 30)}</code>`, end: true, hide: true },
        ]} />`}`}</${Resource}>`;
}
