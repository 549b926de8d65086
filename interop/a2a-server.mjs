// Serves an agent with @a2a-js/sdk, and prints its address: node a2a-server.mjs JSONRPC|HTTP+JSON 1.0|0.3 [signed|forged]
import express from 'express'
import { AgentCard, Task, Message, generateAgentCardSignature } from '@a2a-js/sdk'
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server'
import { agentCardHandler, jsonRpcHandler, restHandler, UserBuilder } from '@a2a-js/sdk/server/express'
import * as sdk from '@a2a-js/sdk'

const [binding, version, signature] = process.argv.slice(2)
const keys = await crypto.subtle.generateKey({ name: 'ECDSA', namedCurve: 'P-256' }, true, ['sign', 'verify'])

class Talker {
  async execute(ctx, bus) {
    const { userMessage, taskId, contextId, task } = ctx
    const text = userMessage.parts[0].content?.value ?? ''
    const say = (state, words) => bus.publish(AgentEvent.statusUpdate(sdk.TaskStatusUpdateEvent.fromJSON({ taskId, contextId, status: { state, timestamp: new Date().toISOString(),
      ...(words ? { message: { messageId: taskId + state, role: 'ROLE_AGENT', parts: [{ text: words }], taskId, contextId } } : {}) } })))
    const give = (words, more) => bus.publish(AgentEvent.artifactUpdate(sdk.TaskArtifactUpdateEvent.fromJSON({ taskId, contextId, ...more,
      artifact: { artifactId: 'a', parts: [{ text: words }], metadata: { unit: 'words' } } })))
    bus.publish(AgentEvent.task(task ?? Task.fromJSON({ id: taskId, contextId, status: { state: 'TASK_STATE_SUBMITTED' }, history: [Message.toJSON(userMessage)] })))
    const verb = text.split(' ')[0]
    if (text === 'ask') {
      say('TASK_STATE_INPUT_REQUIRED', 'which city?')
    } else if (verb === 'fail' || verb === 'reject') {
      say(verb === 'fail' ? 'TASK_STATE_FAILED' : 'TASK_STATE_REJECTED', `no ${verb}`)
    } else if (verb === 'kinds') {
      bus.publish(AgentEvent.artifactUpdate(sdk.TaskArtifactUpdateEvent.fromJSON({ taskId, contextId, lastChunk: true, artifact: { artifactId: 'k', name: 'Kinds', parts: [
        { raw: Buffer.from('png').toString('base64'), mediaType: 'image/png', filename: 'a.png' }, { data: { rows: [1, 2] }, metadata: { unit: 'm' } },
        { url: 'https://x.example/b.pdf', mediaType: 'application/pdf', filename: 'b.pdf' }] } })))
      say('TASK_STATE_COMPLETED')
    } else {
      say('TASK_STATE_WORKING')
      give('you said ', { append: false, lastChunk: false })
      give(text, { append: true, lastChunk: true })
      say('TASK_STATE_COMPLETED')
    }
    bus.finished()
  }
  async cancelTask() {}
}

const app = express()
const server = app.listen(0, '127.0.0.1', async () => {
  const url = `http://127.0.0.1:${server.address().port}`
  let card = AgentCard.fromJSON({ name: `JS ${binding} ${version}`, description: 'An agent of the JavaScript library.', version: '1.0.0',
    supportedInterfaces: [{ url: url + '/a2a', protocolBinding: binding, protocolVersion: version }],
    capabilities: { streaming: true, pushNotifications: false }, defaultInputModes: ['text/plain', 'application/json'], defaultOutputModes: ['text/plain'],
    skills: [{ id: 'talk', name: 'Talk', description: 'Says it again.', tags: ['words'] }],
    ...(signature ? { provider: { organization: '', url: 'https://js.example' }, securitySchemes: { key: { apiKeySecurityScheme: { location: 'header', name: 'X-Key' } } } } : {}) })
  if (signature) {
    const jwk = { ...(await crypto.subtle.exportKey('jwk', keys.publicKey)), kid: 'k1', use: 'sig' }
    app.get('/jwks.json', (_, res) => res.json({ keys: [jwk] }))
    card = await generateAgentCardSignature(keys.privateKey, { alg: 'ES256', typ: 'JOSE', kid: 'k1', jku: url + '/jwks.json' })(card)
    if (signature === 'forged') card.description += '!'
  }
  const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Talker())
  const options = { requestHandler, userBuilder: UserBuilder.noAuthentication, legacyCompat: { enabled: version === '0.3' } }
  app.use('/.well-known/agent-card.json', agentCardHandler({ agentCardProvider: requestHandler, ...options }))
  app.use('/a2a', binding === 'JSONRPC' ? jsonRpcHandler(options) : restHandler(options))
  console.log(JSON.stringify(url))
})
process.stdin.on('end', () => process.exit()).resume()
