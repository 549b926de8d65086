// The npm module ws speaks a dialect of the WebSocket subprotocol to a node: doc, kotlin or wtp. Arguments: the URL of the
// socket, the dialect, the id of the thing. What came back goes to standard output as JSON.
import WebSocket from 'ws'
import { randomUUID } from 'node:crypto'

const [url, dialect, thing] = process.argv.slice(2)
const protocols = { doc: ['lmosprotocol'], kotlin: [], wtp: ['webthingprotocol'] }[dialect]
const socket = new WebSocket(url, protocols)
await new Promise((resolve, reject) => { socket.once('open', resolve); socket.once('error', reject) })

const came = []
let waiting = []
const more = () => new Promise((resolve) => waiting.push(resolve))
const stuck = setTimeout(() => { console.error('stuck after', JSON.stringify(saw), came.slice(-3)); process.exit(1) }, 20000)
socket.on('message', (data) => { came.push(JSON.parse(data)); const all = waiting; waiting = []; all.forEach((wake) => wake()) })
const id = (m, name) => m[name + 'ID'] ?? m[name + 'Id']

/** Sends a message in the dialect, and waits for a message that fits. */
async function ask (kotlin, doc, wtp, fits) {
  const messageID = randomUUID()
  const m = dialect === 'kotlin'
    ? { thingId: thing, messageId: messageID, ...kotlin }
    : { thingID: thing, messageID, correlationID: messageID, ...(dialect === 'doc' ? doc : { messageType: 'request', ...wtp }) }
  const from = came.length
  socket.send(JSON.stringify(m))
  const answers = (a) => id(a, 'correlation') === messageID && fits(a)
  for (;;) {
    const found = came.slice(from).find(answers)
    if (found) return found
    await more()
  }
}
const any = () => true
const type = (...names) => (m) => names.includes(m.messageType)
const value = (m) => m.value ?? m.data
const saw = { protocol: socket.protocol }

let m = await ask({ messageType: 'readProperty', property: 'units' }, { messageType: 'readProperty', name: 'units' },
  { operation: 'readproperty', name: 'units' }, any)
saw.read = value(m)
m = await ask({ messageType: 'writeProperty', property: 'level', data: 5 }, { messageType: 'writeProperty', name: 'level', data: 5 },
  { operation: 'writeproperty', name: 'level', value: 5 }, any)
saw.written = m.messageType
m = await ask({ messageType: 'readMultipleProperties', properties: ['units', 'level'] }, { messageType: 'readMultipleProperties', data: ['units', 'level'] },
  { operation: 'readmultipleproperties', names: ['units', 'level'] }, any)
saw.several = m.values ?? m.data
m = await ask({ messageType: 'readAllProperties' }, { messageType: 'readAllProperties' }, { operation: 'readallproperties' }, any)
saw.all = m.values ?? m.data
const final = (m) => m.messageType === 'response' ? m.status === undefined || 'error' in m : ['completed', 'failed'].includes(m.status)
m = await ask({ messageType: 'invokeAction', action: 'add', input: { a: 19, b: 23 } }, { messageType: 'invokeAction', action: 'add', input: { a: 19, b: 23 } },
  { operation: 'invokeaction', name: 'add', input: { a: 19, b: 23 } }, final)
saw.output = m.output
if (dialect !== 'kotlin') { // which has no message for it
  const of = (m) => m.status?.actionID ?? id(m, 'action')
  const state = (m) => m.status?.state ?? m.state ?? m.status
  m = await ask({}, { messageType: 'invokeAction', action: 'wait', input: 60000 }, { operation: 'invokeaction', name: 'wait', input: 60000 }, of)
  const run = { actionID: of(m) }
  const cancel = () => ask({}, { messageType: 'cancelAction', action: 'wait', ...run }, { operation: 'cancelaction', name: 'wait', ...run }, any)
  await cancel()
  m = await ask({}, { messageType: 'queryAction', action: 'wait', ...run }, { operation: 'queryaction', name: 'wait', ...run }, any)
  saw.cancelled = state(m)
  m = await cancel()
  saw.again = String(m.error?.status ?? m.status)
}
m = await ask({ messageType: 'invokeAction', action: 'add', input: { a: 'x' } }, { messageType: 'invokeAction', action: 'add', input: { a: 'x' } },
  { operation: 'invokeaction', name: 'add', input: { a: 'x' } }, (m) => m.messageType === 'error' || 'error' in m)
saw.refused = String(m.status ?? m.error.status)
m = await ask({ messageType: 'readProperty', property: 'nothing' }, { messageType: 'readProperty', name: 'nothing' },
  { operation: 'readproperty', name: 'nothing' }, (m) => m.messageType === 'error' || 'error' in m)
saw.missing = String(m.status ?? m.error.status)

m = await ask({ messageType: 'observeProperty', property: 'level' }, { messageType: 'observeProperty', name: 'level' },
  { operation: 'observeproperty', name: 'level' }, any)
saw.observing = m.messageType
const until = async (fits) => {
  for (;;) {
    const found = came.find(fits)
    if (found) return found
    await more()
  }
}
socket.send(JSON.stringify(dialect === 'wtp'
  ? { messageType: 'request', operation: 'writeproperty', thingID: thing, messageID: randomUUID(), name: 'level', value: 77 }
  : dialect === 'doc'
    ? { messageType: 'writeProperty', thingID: thing, messageID: randomUUID(), name: 'level', data: 77 }
    : { messageType: 'writeProperty', thingId: thing, messageId: randomUUID(), property: 'level', data: 77 }))
m = await until((m) => ['propertyReading', 'notification'].includes(m.messageType) && value(m) === 77 && (m.name ?? m.property) === 'level')
saw.observed = value(m)
if (dialect === 'doc') {
  socket.send(JSON.stringify({ messageType: 'unobserveProperty', thingID: thing, messageID: randomUUID(), name: 'level' })) // has no answer
} else {
  m = await ask({ messageType: 'unobserveProperty', property: 'level' }, {}, { operation: 'unobserveproperty', name: 'level' }, any)
  saw.unobserved = m.messageType
}

if (dialect === 'doc') {
  socket.send(JSON.stringify({ messageType: 'subscribeEvent', thingID: thing, messageID: randomUUID(), event: 'alarm' })) // answered by events
} else {
  m = await ask({ messageType: 'subscribeevent', event: 'alarm' }, {}, { operation: 'subscribeevent', name: 'alarm' }, type('acknowledgement', 'response'))
  saw.subscribed = m.messageType
}
const ring = setInterval(() => ask({ messageType: 'invokeAction', action: 'ring', input: 'fire' }, { messageType: 'invokeAction', action: 'ring', input: 'fire' },
  { operation: 'invokeaction', name: 'ring', input: 'fire' }, any), 50)
m = await until((m) => m.messageType === 'event' || m.messageType === 'notification' && m.operation === 'subscribeevent')
clearInterval(ring)
saw.event = m.data
socket.send('this is no JSON')
socket.send(Buffer.from([1, 2, 3]))
m = await ask({ messageType: 'readProperty', property: 'units' }, { messageType: 'readProperty', name: 'units' },
  { operation: 'readproperty', name: 'units' }, any)
saw.after = value(m)
clearTimeout(stuck)
socket.close()
console.log(JSON.stringify(saw))
