// node-wot exposes a thing over HTTP on a free port of loopback, and prints its TD as one line of JSON. It runs until its
// standard input ends.
import core from '@node-wot/core'
import bindings from '@node-wot/binding-http'
import { createServer } from 'node:net'

const port = await new Promise((resolve) => {
  const s = createServer().listen(0, '127.0.0.1', () => { const { port } = s.address(); s.close(() => resolve(port)) })
})
const servient = new core.Servient()
servient.addServer(new bindings.HttpServer({ port, address: '127.0.0.1', baseUri: `http://127.0.0.1:${port}` }))
const wot = await servient.start()
const thing = await wot.produce({
  title: 'Counter',
  id: 'urn:example:counter',
  properties: { count: { type: 'integer', observable: true }, label: { type: 'string' } },
  actions: { increment: { input: { type: 'integer' }, output: { type: 'integer' } }, fail: {} },
  events: { changed: { data: { type: 'integer' } } }
})
let count = 0
let label = 'nothing'
thing.setPropertyReadHandler('count', async () => count)
thing.setPropertyWriteHandler('count', async (v) => { count = await v.value(); await thing.emitPropertyChange('count'); thing.emitEvent('changed', count) })
thing.setPropertyReadHandler('label', async () => label)
thing.setPropertyWriteHandler('label', async (v) => { label = await v.value() })
thing.setActionHandler('increment', async (v) => {
  count += await v.value()
  await thing.emitPropertyChange('count')
  thing.emitEvent('changed', count)
  return count
})
thing.setActionHandler('fail', async () => { throw new Error('out of order') })
await thing.expose()
console.log(JSON.stringify(thing.getThingDescription()))
process.stdin.resume()
process.stdin.on('end', () => process.exit(0))
