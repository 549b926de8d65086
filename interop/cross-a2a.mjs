// A client of A2A makes the calls of a plan, and prints what came of each: node cross-a2a.mjs JSONRPC|HTTP+JSON PLAN, where PLAN is JSON:
// [{"url": …, "calls": [{"skill", "parts", "metadata", "next": true, "context": true, "stream": true, "cancel": true}]}]. A next call is of the
// task before, one with context of its context alone. What is cancelled works first. The cards are verified.
import { writeSync } from 'node:fs'
import { keyOf } from './did-key.mjs'
import { verifyAgentCardSignature, SendMessageRequest, StreamResponse, Task, Message, AgentCard } from '@a2a-js/sdk'
import { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } from '@a2a-js/sdk/client'

process.stdout.write = process.stderr.write.bind(process.stderr)
const [binding, text] = process.argv.slice(2)
const all = []
let count = 0
for (const { url, calls } of JSON.parse(text)) {
  const card = AgentCard.fromJSON(await (await fetch(url + '/.well-known/agent-card.json', { headers: { 'A2A-Version': '1.0' } })).json())
  await verifyAgentCardSignature(async (kid) => keyOf(kid))(card) // with the schemas of its skills in it
  card.supportedInterfaces = card.supportedInterfaces.filter((i) => i.protocolVersion === '1.0' && i.protocolBinding === binding && !i.tenant)
  const client = await new ClientFactory({ transports: [new JsonRpcTransportFactory(), new RestTransportFactory()], preferredTransports: [binding] }).createFromAgentCard(card)
  let before = {}
  for (const call of calls) {
    const saw = { states: [], words: [] }
    const ids = call.next ? { taskId: before.id, contextId: before.contextId } : call.context ? { contextId: before.contextId } : {}
    const metadata = { ...(call.skill ? { skillId: call.skill } : {}), ...call.metadata }
    const q = SendMessageRequest.fromJSON({ message: { messageId: `x${process.pid}-${count++}`, role: 'ROLE_USER', parts: call.parts, metadata, ...ids },
      configuration: { returnImmediately: !!call.cancel } })
    try {
      if (call.stream) {
        let id
        for await (const e of client.sendMessageStream(q)) {
          const j = StreamResponse.toJSON(e)
          id ??= j.task?.id
          if (j.statusUpdate) {
            saw.states.push(j.statusUpdate.status.state)
            saw.words.push(j.statusUpdate.status.message?.parts?.[0]?.text ?? '')
          }
        }
        saw.task = Task.toJSON(await client.getTask({ id, tenant: '' }))
      } else {
        const r = await client.sendMessage(q)
        if (r.status) saw.task = Task.toJSON(r)
        else saw.message = Message.toJSON(r)
      }
      for (let i = 0; call.cancel && i < 50; i++) { // it works, unless it is one that does not say so
        if (Task.toJSON(await client.getTask({ id: saw.task.id, tenant: '' })).status.state !== 'TASK_STATE_SUBMITTED') break
        await new Promise((resolve) => setTimeout(resolve, 20))
      }
      if (call.cancel) saw.task = Task.toJSON(await client.cancelTask({ id: saw.task.id, tenant: '' }))
      before = saw.task ?? {}
    } catch (e) { saw.error = `${e.name}: ${e.message}` }
    all.push(saw)
  }
}
writeSync(1, JSON.stringify(all))
process.exit(0)
