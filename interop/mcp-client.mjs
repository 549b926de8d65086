// A client of MCP uses a node as a server: node mcp-client.mjs v1|v2|v2-modern URL PREFIX RESOURCE prints what it saw. The names of the
// tools begin with PREFIX. v1 is @modelcontextprotocol/sdk, v2 @modelcontextprotocol/client, of the old era and of the new.
const [flavour, url, prefix, uri] = process.argv.slice(2)
const saw = { updated: 0, progress: [] }
let client, subscribe

const answer = async (r) => {
  saw.asked = r.params.message
  return { action: 'accept', content: { yes: true } }
}
const updated = () => { saw.updated++; woken() }
let woken = () => {}

if (flavour === 'v1') {
  const { Client } = await import('@modelcontextprotocol/sdk/client/index.js')
  const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js')
  const { ElicitRequestSchema, ResourceUpdatedNotificationSchema } = await import('@modelcontextprotocol/sdk/types.js')
  client = new Client({ name: 'test', version: '1' }, { capabilities: { elicitation: {} } })
  client.setRequestHandler(ElicitRequestSchema, answer)
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, updated)
  await client.connect(new StreamableHTTPClientTransport(new URL(url)))
} else {
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client')
  const options = { capabilities: { elicitation: { form: {} } } }
  if (flavour === 'v2-modern') options.versionNegotiation = { mode: 'auto' }
  client = new Client({ name: 'test', version: '1' }, options)
  client.setRequestHandler('elicitation/create', answer)
  client.setNotificationHandler('notifications/resources/updated', updated)
  await client.connect(new StreamableHTTPClientTransport(new URL(url)))
}
subscribe = flavour === 'v2-modern' ? () => client.listen({ resourceSubscriptions: [uri] }) : () => client.subscribeResource({ uri })

const call = (name, args, options) => flavour === 'v1'
  ? client.callTool({ name: prefix + name, arguments: args }, undefined, options)
  : client.callTool({ name: prefix + name, arguments: args }, options)
const texts = (r) => r.content.map((c) => c.text ?? c.type).join('|')

saw.version = client.getServerVersion?.()?.name
saw.tools = (await client.listTools()).tools.map((t) => t.name)
saw.greeting = texts(await call('greet', { value: 'Ann' }))
saw.structured = (await call('greet', { value: 'Ann' })).structuredContent
saw.run = texts(await call('run', { value: 'x' })).trim()
const failed = await call('fail', {})
saw.failed = [failed.isError === true, texts(failed)]
saw.counted = texts(await call('count', {}, { onprogress: (p) => saw.progress.push(p.message) }))
saw.confirmed = texts(await call('confirm', { value: 'all' }))

const leave = new AbortController()
const waits = call('wait', {}, { signal: leave.signal, onprogress: () => leave.abort() }).then(() => 'answered', () => 'cancelled')
saw.cancelled = await waits

const told = new Promise((resolve) => { woken = resolve })
await subscribe()
await call('poke', {})
await told
saw.read = (await client.readResource({ uri })).contents[0].text
await client.close()
console.log(JSON.stringify(saw))
process.exit(0)
