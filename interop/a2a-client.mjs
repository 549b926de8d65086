// Asks an agent with @a2a-js/sdk, and prints what it saw: node a2a-client.mjs BASE JSONRPC|HTTP+JSON 1.0|0.3 TOKEN
import { writeSync } from 'node:fs'
import { keyOf } from './did-key.mjs'
import { verifyAgentCardSignature, SendMessageRequest, StreamResponse, Task, AgentCard } from '@a2a-js/sdk'
import { ClientFactory, JsonRpcTransportFactory, RestTransportFactory, DefaultAgentCardResolver } from '@a2a-js/sdk/client'

// What the library tells goes beside what is printed.
process.stdout.write = process.stderr.write.bind(process.stderr)

const [base, binding, version, token] = process.argv.slice(2)
const legacyCompat = { enabled: version === '0.3' }

const saw = {}
const verify = verifyAgentCardSignature(async (kid) => keyOf(kid))
for (const [name, path, headers] of [['pure', '/.well-known/agent-card.json', { 'A2A-Version': '1.0' }], ['union', '/.well-known/agent-card.json', {}],
  ['extended', '/extendedAgentCard', { 'A2A-Version': '1.0', Authorization: `Bearer ${token}` }]]) {
  const raw = await (await fetch(base + path, { headers })).json()
  saw[name] = await verify(AgentCard.fromJSON(raw)).then(() => 'good', (e) => String(e))
  raw.description += '!'
  saw[name + ' changed'] = await verify(AgentCard.fromJSON(raw)).then(() => 'good', () => 'wrong')
}

const raw = await (await fetch(base + '/.well-known/agent-card.json')).json()
const card = AgentCard.fromJSON(raw)
card.supportedInterfaces = card.supportedInterfaces.filter((i) => i.protocolVersion === version && i.protocolBinding === binding && !i.tenant)
const transports = [new JsonRpcTransportFactory({ legacyCompat }), new RestTransportFactory({ legacyCompat })]
const client = await new ClientFactory({ transports, preferredTransports: [binding], cardResolver: new DefaultAgentCardResolver({ legacyCompat }) }).createFromAgentCard(card)

let count = 0
const request = (parts, more = {}, configuration = {}) =>
  SendMessageRequest.fromJSON({ message: { messageId: `m${process.pid}-${count++}`, role: 'ROLE_USER', parts, ...more }, configuration })
const failed = (e) => `${e.name}: ${e.message}`
const task = (t) => (t.status ? Task.toJSON(t) : t)

const echoed = task(await client.sendMessage(request([{ text: 'hello' }], { metadata: { skillId: 'echo' } })))
saw.echo = [echoed.status.state, echoed.artifacts[0].parts[0].text]
saw.stream = []
for await (const e of client.sendMessageStream(request([{ data: 3 }], { metadata: { skillId: 'count' } }))) {
  const j = StreamResponse.toJSON(e)
  saw.stream.push(j.task ? 'task' : j.statusUpdate ? j.statusUpdate.status.state : '+' + JSON.stringify(j.artifactUpdate.artifact.parts[0].data))
}
const asks = task(await client.sendMessage(request([{ data: { city: 'Bonn' } }], { metadata: { skillId: 'book' } })))
saw.asks = asks.status.state
const answered = task(await client.sendMessage(request([{ data: { day: 'Monday' } }], { taskId: asks.id, contextId: asks.contextId })))
saw.answered = [answered.status.state, answered.id === asks.id]
saw.get = task(await client.getTask({ id: asks.id, historyLength: 1, tenant: '' })).history.length
saw.unknown = await client.getTask({ id: 'none', tenant: '' }).then(() => 'found', failed)
const slow = task(await client.sendMessage(request([{ data: { until: 'never' } }], { metadata: { skillId: 'slow' } }, { returnImmediately: true })))
saw.cancel = task(await client.cancelTask({ id: slow.id, tenant: '' })).status.state
if (version === '1.0') {
  const list = await client.listTasks({ tenant: '', contextId: asks.contextId, status: 0, pageToken: '', includeArtifacts: false })
  saw.list = [list.tasks.length, list.nextPageToken]
}
const push = await client.createTaskPushNotificationConfig({ tenant: '', taskId: asks.id, id: 'p', url: 'https://hook.example/', token: 't', authentication: undefined }).catch(failed)
saw.push = push.url ?? push
writeSync(1, JSON.stringify(saw))
