// All words of the page, keyed by the English text. Numbers, times and plurals come from Intl.

/**
 * WORDS has every text of the page. The value replaces the text, '' keeps it: a table of another language has the same keys.
 * Each view has its own block, so that changes of two views do not meet.
 */
export const WORDS = {
  // Frame
  'Overview': '',
  'Ask': '',
  'Mesh': '',
  'Agents': '',
  'Agent': '',
  'Calls': '',
  'Events': '',
  'Tasks': '',
  'Trust': '',
  'Network': '',
  'Node': '',
  'More': '',
  'Views': '',
  'Close': '',
  'Search': '',
  'Search views and agents': '',
  'Results': '',
  'No result for “{query}”': '',
  'Skip to the content': '',
  'lmosd console': '',
  'read only': '',
  'may call': '',
  'may change': '',
  'Rights': '',
  'This page only looks. Sign in to call agents or to change something.': '',
  'Signed in: this page may look.': '',
  'Signed in: this page may call agents.': '',
  'Signed in: this page may call agents and change the node.': '',
  'Signed in by {maker}': '',
  'Ends {time}': '',
  'Sign out': '',
  'Signed out': '',
  'Signed in': '',
  'Run this command on the host of the node. It opens this page with a session.': '',
  'The session has ended. This page is read only now.': '',
  'The link was used or is too old. Make a new one with the command.': '',
  'The node does not answer since {time}. What is shown is as of then.': '',
  'Trying again': '',
  'Live': '',
  'Connecting': '',
  'No connection': '',
  'Paused': '',
  'Theme': '',
  'System': '',
  'Light': '',
  'Dark': '',
  'Page not found': '',
  'There is no view at this address.': '',
  'The view could not be loaded.': '',
  'Go to Overview': '',

  // Components
  'Copy': '',
  'Copied': '',
  'Copy “{text}”': '',
  'Loading': '',
  'Nothing here yet': '',
  'Incomplete': '',
  'This view needs more rights: {rights}.': '',
  'Something went wrong': '',
  'The node does not answer.': '',
  'This node has no such route: it may be older than this page.': '',
  'Try again': '',
  'Reload': '',
  'Sorted by {column}, ascending': '',
  'Sorted by {column}, descending': '',
  'none': '',
  'never': '',
  'now': '',
  'unknown': '',

  // Events
  'call': '',
  'task': '',
  'trace': '',
  'Filter events': '',
  'Kinds': '',
  'Name, DID, code, trace …': '',
  'No event matches.': '',
  'No event yet. What changes in the mesh appears here.': '',
  'Show more': '',
  'The page keeps the last {n} events.': '',
  'live': '',
  '{n} are hidden by the filter.': '',
  'Warnings': '',
  'Relays': '',
  'Other': '',
  'Peer connected': '',
  'Peer disconnected': '',
  'Agent added': '',
  'Agent changed': '',
  'Agent removed': '',
  'Agent reachable': '',
  'Agent unreachable': '',
  'Task started': '',
  'Task changed': '',
  'Task ended': '',
  'Warning cleared': '',
  'Trust changed': '',
  'Access rules changed': '',
  'Access tokens changed': '',
  'Key changed': '',
  'Relay found': '',
  'Relay lost': '',
  'Configuration reloaded': '',
  'Two records of one agent': '',
  'Continue': '',
  'Continue, {n} new': '',
  'Pause': '',
  'paused': '',

  // Calls
  'Agent and action': '',
  'All calls of this trace': '',
  'All': '',
  'Began': '',
  'Call': '',
  'Calls are shown to sessions with all rights.': '',
  'Failed': '',
  'First part': '',
  'From': '',
  'Host': '',
  'No call matches.': '',
  'No call yet.': '',
  'Operation': '',
  'Parts': '',
  'Path': '',
  'Received': '',
  'Remove the filter': '',
  'Result': '',
  'Sent': '',
  'The last 500 calls of consumers of this node, without their content': '',
  'The stages of this call were not measured.': '',
  'Time': '',
  'Took': '',
  'Trace id': '',
  'Trace': '',
  'Way': '',
  '{n} of {total}': '',
  'Completed': '',
  'Canceled': '',
  'Running': '',
  'Error code': '',

  // Overview
  '{title}, last values: {values}': '',
  'Add a node': '',
  'All events': '',
  'Any command can be one. A web server, an MCP server or an A2A agent can, too.': '',
  'Call the agent': '',
  'Duration': '',
  'First steps': '',
  'From any node, or on this page in the view Agents.': '',
  'Last 15 minutes': '',
  'Latest events': '',
  'Memory': '',
  'Offer an agent': '',
  'Peers': '',
  'Run it on another host. On one local network the nodes find each other without the address.': '',
  'State of the node': '',
  'Unknown': '',
  'Up': '',
  'agents': '',
  'all direct': '',
  'errors': '',
  'none yet': '',
  'peers': '',
  'per second': '',
  'profile {name}': '',
  'resident': '',
  '{n} of this node': '',
  '{n} relayed': '',
  'Ready': '',
  'Starting': '',
  'Degraded': '',
  'Stopping': '',
  'Public': '',
  'Local': '',
  'Private': '',
  'The node measures. The first values come within seconds.': '',

  // Node
  'A check failed': '',
  'Address': '',
  'Addresses': '',
  'All checks passed': '',
  'All, {n}': '',
  'Bridges are shown to sessions with all rights.': '',
  'Bridges': '',
  'Callers': '',
  'Changed, {n}': '',
  'Check again': '',
  'Check this node': '',
  'Check': '',
  'Checking …': '',
  'Checks keys, clock, storage, addresses, relays and bridges, and says what to do.': '',
  'Clients of other protocols reach the mesh here': '',
  'Configuration': '',
  'Ends': '',
  'Errors': '',
  'Every key has its default.': '',
  'Every logger': '',
  'Filter the keys': '',
  'Filter the routes': '',
  'Folder': '',
  'Found on the local network': '',
  'Identity': '',
  'Key or value': '',
  'Key': '',
  'Keys': '',
  'Last': '',
  'Level of {logger}: {level}': '',
  'Levels': '',
  'Logger': '',
  'Methods': '',
  'Name': '',
  'No bridge is on.': '',
  'No key matches.': '',
  'No record matches.': '',
  'Nothing was introduced.': '',
  'Parts of this view': '',
  'Path or method': '',
  'Paths': '',
  'Peer id': '',
  'Profile': '',
  'Protocol': '',
  'Requests': '',
  'Routes of the API': '',
  'Shown from level': '',
  'Signed in by': '',
  'Since': '',
  'Started': '',
  'State': '',
  'The change is in force at once, and until the node stops.': '',
  'The checks run for sessions with all rights.': '',
  'The configuration is shown to sessions with all rights.': '',
  'The log is empty.': '',
  'The log is shown to sessions with all rights.': '',
  'This page': '',
  'Value': '',
  'Version': '',
  'Where': '',
  'Writes from level': '',
  'all others': '',
  'About': '',
  'Logs': '',
  'Doctor': '',
  'API': '',
  'default': '',
  'file': '',
  'environment': '',
  'flag': '',
  'profile': '',
  'Pass': '',
  'Warning': '',
  'any': '',

  // Mesh
  'trust': '',
  'Mine': '',
  'Not verified': '',
  'A connection of this node': '',
  'Reported by a member': '',
  'Named by a record': '',
  'refused': '',
  'Agents here': '',
  'Choose a node in the picture or in the table.': '',
  'Close organizations': '',
  'Closer': '',
  'Connections': '',
  'Cut at {n} nodes': '',
  'DID': '',
  'Delay': '',
  'End the choice': '',
  'Farther': '',
  'Filter by name, DID or organization': '',
  'Hollow: not reachable': '',
  'Known by': '',
  'Legend': '',
  'No organization': '',
  'No row has this text.': '',
  'Nodes of one local network find each other. Others are connected by address or by an invitation.': '',
  'Nodes of': '',
  'Nodes': '',
  'Organization': '',
  'Own connections and records only': '',
  'Own organization': '',
  'Partner': '',
  'Path of the last call: {name}': '',
  'Picture of the mesh. Arrow keys choose a node, Enter opens it, Escape ends the choice. The tables have the same.': '',
  'Picture': '',
  'Relation': '',
  'Relayed': '',
  'Roles': '',
  'Seen by': '',
  'Seen': '',
  'Show all': '',
  'Show more rows': '',
  'Table of': '',
  'Table': '',
  'Table: {name}': '',
  'The chosen node is not in this list any more.': '',
  'This node is connected to no other node.': '',
  'This node knows no other node of this kind.': '',
  'This node shows no agents to this one.': '',
  'This node': '',
  'To': '',
  'Transport': '',
  'and {n} more in the table': '',
  'by {name}': '',
  'direct': '',
  'not reachable': '',
  'reachable': '',
  'relayed': '',
  '{answered} of {asked} asked nodes answered': '',
  '{name}: {count}. A click opens it.': '',
  '{n} in all': '',
  '{n} not reachable': '',
  '{shown} of {all}': '',

  // Network
  'Other nodes reach this one directly at an address that is proven to work.': '',
  'Other nodes reach this one at private addresses. This network has no others.': '',
  'Other nodes reach this one through relays only.': '',
  'No other network is in sight, so nothing was proven yet.': '',
  'None: an interface has the address that peers see': '',
  'Endpoint-independent: direct connections can be punched': '',
  'Address-dependent: most connections stay relayed': '',
  'Unknown: too few peers have seen this node': '',
  'Off': '',
  'No router has answered': '',
  'The router has mapped a port': '',
  'Interface': '',
  'Seen by peers': '',
  'Inbound connection': '',
  'peer': '',
  'A node with a public address may relay for others.': '',
  'Announced': '',
  'Bytes': '',
  'Checked by peers': '',
  'Connect to an address': '',
  'Connect': '',
  'Connected for': '',
  'Connected nodes': '',
  'Connected': '',
  'Direction': '',
  'Hole punches': '',
  'It needs none while others reach it directly.': '',
  'Last hole punches': '',
  'Limit of a connection': '',
  'Mapped port': '',
  'NAT, TCP': '',
  'NAT, UDP': '',
  'No relayed connection needed one yet.': '',
  'Nodes in other networks cannot reach it until a relay accepts it.': '',
  'Port mapping': '',
  'Program': '',
  'Proof': '',
  'Reachability': '',
  'Reason': '',
  'Refused by': '',
  'Refused': '',
  'Relay': '',
  'Relayed connections': '',
  'Relaying for others': '',
  'Relays that did not serve this node': '',
  'Relays used': '',
  'Source': '',
  'This node listens on no address.': '',
  'This node relays nothing.': '',
  'This node uses no relay.': '',
  'Usable': '',
  'When': '',
  'connections': '',
  'direct connections in place of relayed ones': '',
  'failed': '',
  'inbound': '',
  'no limit': '',
  'no': '',
  'not proven': '',
  'outbound': '',
  'punched': '',
  'reservations': '',
  'since the start': '',
  'success': '',
  'today': '',
  'tried': '',
  'yes': '',
  '{total}: {direct} direct, {relayed} relayed': '',
  '{used} of {limit}': '',

  // Trust
  'partner': '',
  'Organizations': '',
  'Invitations': '',
  'Access': '',
  'Audit': '',
  'confirmed': '',
  'unconfirmed': '',
  'ended': '',
  'suspended': '',
  'active': '',
  'invited': '',
  'left': '',
  'removed': '',
  'dissolved': '',
  'Partner {name}': '',
  'A node asks to join: {name}': '',
  'Group {name} invites this node': '',
  'Any time': '',
  'Last hour': '',
  'Last day': '',
  'Last 7 days': '',
  '1 hour': '',
  '1 day': '',
  '7 days': '',
  '30 days': '',
  'A credential of such an issuer gives its holder a role here, and nothing else.': '',
  'A group has nodes of any organization as members, for one purpose.': '',
  'A node for this organization': '',
  'A rule with a condition concerns it: input or time may change the decision.': '',
  'Access tokens': '',
  'Admit it only if its screen shows the same words.': '',
  'Agent of this node': '',
  'Allowed': '',
  'An accepted invitation waits here until both sides have compared the words. Nothing is trusted before that.': '',
  'Another organization': '',
  'Asking for a decision needs more rights: {rights}.': '',
  'Audit log': '',
  'Caller': '',
  'Callers of this node have delegated nothing.': '',
  'Cancel': '',
  'Chain and signatures are intact': '',
  'Changed': '',
  'Check words': '',
  'Command of the other side': '',
  'Compare the six words with the other side by another channel, for example by telephone. The name and the domain prove nothing.': '',
  'Condition': '',
  'Confirm {name}?': '',
  'Confirm': '',
  'Confirmed': '',
  'Credential ends': '',
  'Credentials of other issuers': '',
  'Credentials': '',
  'Decision': '',
  'Delegations issued by this node': '',
  'Delegations': '',
  'Denied': '',
  'Discard {name}?': '',
  'Discard': '',
  'Discarded': '',
  'Error of the caller': '',
  'Explain': '',
  'For': '',
  'Groups': '',
  'Head': '',
  'Identity provider': '',
  'Identity providers': '',
  'Input for conditions': '',
  'Invitation': '',
  'Issuer': '',
  'Issuers of credentials': '',
  'Issuers': '',
  'Its log has two histories: one of them may be of a thief. Ask its operator which counts, and choose on the host of the node.': '',
  'JSON, only for rules with a condition.': '',
  'Known from': '',
  'Line': '',
  'Make an invitation': '',
  'Make the invitation': '',
  'Making an invitation needs more rights: {rights}.': '',
  'Members': '',
  'NAME, NAME/ACTION or node': '',
  'Newest entry': '',
  'No invitation is open.': '',
  'No issuer outside of organizations is trusted.': '',
  'No line of the log matches.': '',
  'No other organization is a partner.': '',
  'No rule: the relation of the caller decides.': '',
  'Not intact': '',
  'Nothing is called: the node says which rule decides, and why.': '',
  'Nothing waits.': '',
  'Of the new member, separated by spaces.': '',
  'One invitation connects two organizations. Both sides then compare six words.': '',
  'Only a member of an organization invites.': '',
  'Only for': '',
  'Open invitations': '',
  'Part of this view': '',
  'Partners': '',
  'Property': '',
  'Refused calls and changes of trust are logged; more by the setting trust.audit.level.': '',
  'Right': '',
  'Role': '',
  'Roles of this node': '',
  'Roles that count': '',
  'Rule': '',
  'Send this text by a private channel. It is shown once: it is a secret until it was used.': '',
  'Status list': '',
  'Text of the rule': '',
  'The DID of the node. Empty: any holder of the text.': '',
  'The DID of the organization. It then needs no confirmation here.': '',
  'The audit log needs more rights: {rights}.': '',
  'The invitation is made.': '',
  'The new member becomes an issuer, too.': '',
  'The nodes of one organization may call each other. It needs no server and no account.': '',
  'The other side has the same six words.': '',
  'The partnership ends on this side at once. The other side may still trust the nodes of this one.': '',
  'There is no access token.': '',
  'There is one issuer. If it fails, credentials end and nothing can be revoked: a second one prevents that.': '',
  'This is not JSON: {reason}': '',
  'This node has issued none that is valid.': '',
  'This node is a member of no organization.': '',
  'This node is in no group.': '',
  'This node shows none.': '',
  'Those of its roles that count. Empty: all.': '',
  'To confirm or discard it, this page needs more rights.': '',
  'Uses': '',
  'Valid for': '',
  'Waiting for a decision': '',
  'Waiting': '',
  'What the node takes the caller for': '',
  'What': '',
  'Who is invited': '',
  'Would this caller be allowed?': '',
  'a claim of its log': '',
  'a node': '',
  'a partner': '',
  'all': '',
  'allowed': '',
  'anyone, partners, a partner, PARTNER/ROLE, token:NAME, group:NAME or a DID': '',
  'being revoked': '',
  'change': '',
  'denied': '',
  'expired': '',
  'invitation': '',
  'issuing key': '',
  'no credential': '',
  'none on this node': '',
  'none received': '',
  'revoked': '',
  'root key': '',
  'without limit': '',
  '{count} wait for a decision': '',
  '{name}': '',

  // Agents and Agent
  'Search agents': '',
  'Words, or fields like capability:… type:agent': '',
  '{n} of {total} shown': '',
  '{n} shown': '',
  'index of this node': '',
  'the search ended early': '',
  '{n} unreachable': '',
  'more are loading': '',
  'searching': '',
  'No agent matches.': '',
  'Try fewer words, or another filter.': '',
  'The index of this node has no agents yet.': '',
  'here': '',
  'two versions': '',
  'resembles {name}': '',
  'All capabilities': '',
  'All types': '',
  'All organizations': '',
  'All protocols': '',
  'Capability': '',
  'Type': '',
  'unreachable': '',
  'Withdrawn': '',
  '{name} is withdrawn.': '',
  'All agents': '',
  'Ping: {time}': '',
  'Ping': '',
  'Withdraw': '',
  '{name} has moved: this is its successor.': '',
  'The name looks like {name}. Compare the owners before you call it.': '',
  'Other agents have this name:': '',
  'Actions': '',
  'Ask before calls that change things': '',
  'Properties': '',
  'The description has no actions, properties or events.': '',
  'signed by': '',
  'suite': '',
  'one version': '',
  'number {seq}': '',
  'expires': '',
  'grant': '',
  'organization': '',
  'Chain of trust': '',
  'verified': '',
  'not verified': '',
  'Signed': '',
  'SHA-256': '',
  'Size': '',
  'Last seen': '',
  'Evidence of equivocation': '',
  'The owner signed two records with number {seq}. Nodes may see different descriptions.': '',
  'Owner': '',
  'Record {n}': '',
  'Ways': '',
  'Call by': '',
  'the best way': '',
  '{path}: {times}, median {median}': '',
  'through {node}': '',
  'Reference': '',
  'Types': '',
  'Capabilities': '',
  'Support': '',
  'Links': '',
  'Thing Description': '',
  'Show the description': '',
  'Show the record': '',
  'Withdraw {name}?': '',
  'The mesh is notified that the agent is gone. Its program is not stopped.': '',
  'Keep': '',
  'Filter {name}': '',
  'Filter': '',
  'Show {n} more': '',
  'The call has started': '',
  'The answer is complete': '',
  'The answer broke off': '',
  'The call has failed': '',
  'The description says that it changes nothing.': '',
  'safe': '',
  'idempotent': '',
  'may ask': '',
  'Copy as': '',
  'Variables of {name}': '',
  'Input of {name}': '',
  'Call {name}?': '',
  'The description does not say that a second call has no further effect.': '',
  'Do not call': '',
  'way: {path}': '',
  'host {node}': '',
  'Input of type {type}': '',
  'The value is read': '',
  'A value is missing.': '',
  'The value is written': '',
  'write only': '',
  'observable': '',
  'Read': '',
  'Write': '',
  'Stop': '',
  'Observe': '',
  'New value of {name}': '',
  'Values': '',
  'Subscription to {name}': '',
  'Listen': '',
  'Listening': '',
  'Ended': '',
  'own': '',
  'proven': '',
  'claimed': '',

  // Ask
  'Selected: {name}': '',
  'No agent was selected.': '',
  'Which agent can do it? The node selects one and says why.': '',
  'What do you need?': '',
  'Will it rain in Bonn tomorrow?': '',
  'Among': '',
  'Agents and tools': '',
  'Find an agent': '',
  'Open its form': '',
  'Decided by: {rule}': '',
  'method {method}': '',
  'Candidates': '',
  'selected': '',
  'Match': '',

  // Tasks
  'Actions that continue without their caller.': '',
  'Show': '',
  'Require input': '',
  'No task runs, and none has ended lately.': '',
  '{n} running': '',
  'No task is in this state.': '',
  'The task has ended: {status}': '',
  'The action continues as a task.': '',
  'Id': '',
  'Last state': '',
  'Output': '',
  'Cancel the task': '',
  'The task requires an answer.': '',
  'Parameters': '',
  'Answer': '',
  'Send the answer': '',
  'Decline': '',
  'pending': '',
  'requires input': '',

  // Forms
  'This is not JSON.': '',
  'This is not a number.': '',
  '{low} to {high}': '',
  'at least {low}': '',
  'at most {high}': '',
  '{low} to {high} characters': '',
  'at least {low} characters': '',
  'at most {high} characters': '',
  '{low} to {high} entries': '',
  'at least {low} entries': '',
  'at most {high} entries': '',
  'more than {low}': '',
  'less than {high}': '',
  'a multiple of {n}': '',
  'unit {unit}': '',
  'pattern {pattern}': '',
  'default {value}': '',
  'for example {value}': '',
  'Input as': '',
  'Form': '',
  'JSON': '',
  'This needs no input.': '',
  'Alternative': '',
  'Leave out': '',
  'Fill in': '',
  'Use a field': '',
  'not set': '',
  'Input: text, or JSON': '',
  'Input': '',
  'Show the fields of {name}': '',
  'Show fields': '',
  'Filter fields': '',
  '{n} of {total} fields': '',
  'Remove {name}': '',
  'Add a member': '',
  'Entry': '',
  'Remove entry {n}': '',
  'Add an entry': '',
  'Alternative {n}': '',
  '(empty text)': '',
  'The file is too large.': '',
  'Base64': '',

  // Answers
  'first part after {time}': '',
  'whole {time}': '',
  'answer': '',
  'Save the answer': '',
  'Only a part is shown: the answer has {size}.': '',
  'The action has ended without an output.': '',
  'Waiting for the agent': '',
  'Data of type {type}, {size}: not shown here.': '',
  'The first {n} parts are not kept.': '',
  'running': '',
  'completed': '',
  'canceled': '',
  'Stages of the call': '',
  'Stage': '',
  'Resolve': '',
  'Whole': '',
  '{answered} of {asked} nodes answered': '',
  'Text': '',
  'Yes': '',
  'No': '',
};

// Plurals: 'peer' -> forms by category of Intl.PluralRules. Without an entry the plural of a word is the word with an s.
const PLURALS = {
  'address': { one: '{n} address', other: '{n} addresses' },
  'entry': { one: '{n} entry', other: '{n} entries' },
  'query': { one: '{n} query', other: '{n} queries' },
  'property': { one: '{n} property', other: '{n} properties' },
};

/** lang is the language of the words: English unless there is a table of another. */
export const lang = 'en';

// English with days before months and hours to 23 is read alike everywhere.
const locale = 'en-GB';

/** missing has the texts that the page said and that are not in the table: tests read it. */
export const missing = new Set();

/** t returns the text in the language of the page, with {name} replaced from params. */
export function t(text, params) {
  if (!Object.hasOwn(WORDS, text)) missing.add(text);
  const said = WORDS[text] || text;
  return params ? said.replace(/\{(\w+)\}/g, (whole, name) => (name in params ? String(params[name]) : whole)) : said;
}

const rules = new Intl.PluralRules(lang);

/** plural returns "1 peer" or "3 peers": the number by Intl, the form by its plural category. */
export function plural(n, word) {
  const forms = PLURALS[word];
  const category = rules.select(n);
  if (forms) return (forms[category] ?? forms.other).replace('{n}', num(n));
  return `${num(n)} ${category === 'one' ? word : `${word}s`}`;
}

const whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
const fine = new Intl.NumberFormat(locale, { maximumSignificantDigits: 3 });
const small = new Intl.NumberFormat(locale, { maximumSignificantDigits: 2 });
const share = new Intl.NumberFormat(locale, { style: 'percent', maximumFractionDigits: 0 });

const known = (n) => typeof n === 'number' && Number.isFinite(n);

/** num returns a number for people, with at most one digit after the point; – if it is unknown. */
export function num(n) {
  if (!known(n)) return '–';
  return (Number.isInteger(n) || Math.abs(n) >= 100 ? whole : tenth).format(n);
}

/** percent returns a fraction (0 to 1) as a percentage. */
export function percent(n) {
  return known(n) ? share.format(n) : '–';
}

/** ms returns a duration in milliseconds: "0.4 ms", "15 ms", "2.04 s", "3 min". */
export function ms(n) {
  if (!known(n)) return '–';
  if (n < 1000) return `${n === 0 ? '0' : (n < 1 ? small : fine).format(n)} ms`;
  if (n < 60_000) return `${fine.format(n / 1000)} s`;
  return dur(n / 1000);
}

/** dur returns a duration in seconds by its two largest units: "4 d 2 h", "12 min", "8 s". */
export function dur(s) {
  if (!known(s)) return '–';
  const total = Math.max(0, Math.floor(s));
  const parts = [[Math.floor(total / 86400), 'd'], [Math.floor(total / 3600) % 24, 'h'], [Math.floor(total / 60) % 60, 'min'], [total % 60, 's']];
  const first = parts.findIndex(([n]) => n > 0);
  if (first < 0) return '0 s';
  return parts.slice(first, first + 2).filter(([n], i) => n > 0 && (first + i < 3 || first >= 2)).map(([n, unit]) => `${n} ${unit}`).join(' ');
}

const units = ['B', 'kB', 'MB', 'GB', 'TB'];

/** bytes returns a size in decimal units: "812 B", "1.4 MB". */
export function bytes(n) {
  if (!known(n)) return '–';
  let unit = 0;
  let value = n;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${num(unit === 0 ? value : Math.round(value * 10) / 10)} ${units[unit]}`;
}

const relative = new Intl.RelativeTimeFormat(locale, { numeric: 'always', style: 'narrow' });
const clock = new Intl.DateTimeFormat(locale, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });
const day = new Intl.DateTimeFormat(locale, { day: 'numeric', month: 'short' });
const full = new Intl.DateTimeFormat(locale, { dateStyle: 'medium', timeStyle: 'medium', hourCycle: 'h23' });

/** date parses what the API sends; null if it is absent, not a time, or the zero time of Go. */
export function date(value) {
  if (value === undefined || value === null || value === '') return null;
  const d = value instanceof Date ? value : new Date(value);
  return Number.isNaN(d.getTime()) || d.getUTCFullYear() < 1970 ? null : d;
}

/** ago returns how long a time is past or ahead: "now", "12s ago", "in 3 min". */
export function ago(value, now = Date.now()) {
  const d = date(value);
  if (!d) return t('never');
  const s = (d.getTime() - now) / 1000;
  const size = Math.abs(s);
  if (size < 2) return t('now');
  if (size < 60) return relative.format(Math.trunc(s), 'second');
  if (size < 3600) return relative.format(Math.trunc(s / 60), 'minute');
  if (size < 86_400) return relative.format(Math.trunc(s / 3600), 'hour');
  return relative.format(Math.trunc(s / 86_400), 'day');
}

/** time returns the time of day, with the date if it is another day. */
export function time(value) {
  const d = date(value);
  if (!d) return '–';
  const today = new Date().toDateString() === d.toDateString();
  return today ? clock.format(d) : `${day.format(d)} ${clock.format(d)}`;
}

/** at returns the date and time in full. */
export function at(value) {
  const d = date(value);
  return d ? full.format(d) : '–';
}

// Bidirectional controls, other controls and the invisible characters can make a text look like another one.
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;

/** clean returns a text of an agent that is safe to show: without controls of direction, cut to max characters. */
export function clean(text, max = 300) {
  if (text === undefined || text === null) return '';
  const s = typeof text === 'string' ? text : String(text);
  // Cut before the search: a text of 100 MB must not hold the page.
  const short = (s.length > max * 2 ? s.slice(0, max * 2) : s).replace(hidden, '');
  if (short.length <= max && s.length <= max * 2) return short;
  const points = [...short];
  return points.length > max || s.length > max * 2 ? `${points.slice(0, max - 1).join('')}…` : short;
}

/** link returns an address if it may be opened: https only, '' for everything else. */
export function link(address) {
  try {
    const u = new URL(String(address));
    return u.protocol === 'https:' && !u.username ? u.href : '';
  } catch {
    return '';
  }
}

/** thingName returns the name of an agent, or the name at the end of its id: "weather". */
export function thingName(value) {
  return clean(value, 300).replace(/^urn:lmos:did:\w+:[^:|]+:/, '').replace(/\|.*$/, '').slice(0, 80);
}

/** shortDID returns a DID for a list: "did:key:z6Mk…x4Qf". */
export function shortDID(value) {
  const s = clean(value, 400);
  const match = /^(did:[a-z0-9]+:)(.+)$/.exec(s);
  if (!match) return s.length > 28 ? `${s.slice(0, 16)}…${s.slice(-6)}` : s;
  const [, method, id] = match;
  return id.length <= 16 ? s : `${method}${id.slice(0, 4)}…${id.slice(-6)}`;
}
