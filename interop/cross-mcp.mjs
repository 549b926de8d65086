// A client of MCP makes the calls of a plan, and prints what came of each: node cross-mcp.mjs v1|v2|v2-modern PLAN, where PLAN is JSON:
// [{"url": …, "calls": [{"tool", "args", "answer": "accept"|"decline"|"none", "content", "leave": true}]}]. A text "$name" among the arguments is
// a member of the structured content before. Who leaves does so at the first progress.
const [flavour, text] = process.argv.slice(2)
let saw, call, leave

const asked = async (r) => {
  const { mode, message, url, requestedSchema } = r.params
  saw.asked.push({ mode: mode ?? 'form', message, url, fields: Object.keys(requestedSchema?.properties ?? {}) })
  if (call.answer === 'decline') return { action: 'decline' }
  if (mode === 'url') await fetch(url)
  return { action: 'accept', ...(mode === 'url' ? {} : { content: call.content }) }
}

async function connect(url, can) {
  const capabilities = can ? { elicitation: { form: {}, url: {} } } : {}
  if (flavour === 'v1') {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js')
    const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js')
    const { ElicitRequestSchema } = await import('@modelcontextprotocol/sdk/types.js')
    const client = new Client({ name: 'test', version: '1' }, { capabilities })
    if (can) client.setRequestHandler(ElicitRequestSchema, asked)
    await client.connect(new StreamableHTTPClientTransport(new URL(url)))
    await client.listTools()
    return [client, (params, options) => client.callTool(params, undefined, options)]
  }
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client')
  const client = new Client({ name: 'test', version: '1' }, { capabilities, ...(flavour === 'v2-modern' ? { versionNegotiation: { mode: 'auto' } } : {}) })
  if (can) client.setRequestHandler('elicitation/create', asked)
  await client.connect(new StreamableHTTPClientTransport(new URL(url)))
  await client.listTools()
  return [client, (params, options) => client.callTool(params, options)]
}

const all = []
for (const { url, calls } of JSON.parse(text)) {
  const clients = {}
  let before = {}
  for (call of calls) {
    const can = call.answer !== 'none'
    clients[can] ??= await connect(url, can)
    saw = { asked: [], progress: [] }
    leave = new AbortController()
    const args = Object.fromEntries(Object.entries(call.args ?? {}).map(([k, v]) => [k, typeof v === 'string' && v[0] === '$' ? before[v.slice(1)] : v]))
    try {
      const onprogress = (p) => { saw.progress.push(p.message ?? ''); if (call.leave) leave.abort() }
      saw.result = await clients[can][1]({ name: call.tool, arguments: args }, { onprogress, signal: leave.signal })
      before = saw.result.structuredContent ?? {}
    } catch (e) { saw.error = String(e.message ?? e) }
    if (call.leave && flavour !== 'v2-modern') await clients[can][0].ping() // closing would take back that it has left
    all.push(saw)
  }
  for (const [client] of Object.values(clients)) await client.close()
}
console.log(JSON.stringify(all))
process.exit(0)
