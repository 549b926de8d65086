// node-wot consumes a thing of the mesh through its own node. Its TD is at the URL of the first argument. What it saw goes to
// standard output as JSON.
import core from '@node-wot/core'
import bindings from '@node-wot/binding-http'

const [url] = process.argv.slice(2)
const servient = new core.Servient()
servient.addClientFactory(new bindings.HttpClientFactory(null))
const wot = await servient.start()
const thing = await wot.consume(await wot.requestThingDescription(url))
const saw = { title: thing.getThingDescription().title }

const value = async (output) => await (await output).value()
saw.read = await value(thing.readProperty('units'))
await thing.writeProperty('units', 'kelvin')
saw.written = await value(thing.readProperty('units'))
saw.all = Object.fromEntries(await Promise.all([...await thing.readAllProperties()].map(async ([k, v]) => [k, await v.value()])))
await thing.writeMultipleProperties(new Map([['units', 'celsius'], ['level', 3]]))
saw.level = await value(thing.readProperty('level'))
saw.output = await value(thing.invokeAction('add', { a: 19, b: 23 }))
try {
  await thing.invokeAction('add', { a: 'nineteen' })
} catch (e) {
  saw.refused = String(e.message)
}

// A run is cancelled at the address that the answer has for it. Its Scripting API knows only the start of an action, so this is asked
// of its HTTP client, as the TD's form of cancelaction would have it.
const http = servient.getClientFor('http')
const run = await value(thing.invokeAction('wait', 60000))
saw.begun = run.status
const form = { href: new URL(run.href, url).href, contentType: 'application/json' }
await http.invokeResource({ ...form, op: ['cancelaction'], 'htv:methodName': 'DELETE' })
saw.cancelled = JSON.parse(String(await (await http.readResource({ ...form, op: ['queryaction'] })).toBuffer())).status

// What changes is seen while it is asked for: the first value is made after the subscription stands.
async function collect (begin, make, n) {
  const values = []
  let done
  const enough = new Promise((resolve) => { done = resolve })
  const subscription = await begin(async (output) => {
    values.push(await output.value())
    if (values.length >= n) done()
  }, (e) => { values.push(String(e)); done() })
  const timer = setInterval(make, 50)
  await enough
  clearInterval(timer)
  await subscription.stop()
  const pause = () => new Promise((resolve) => setTimeout(resolve, 50)) // for what was under way
  await pause()
  const had = values.length
  await make()
  await pause()
  saw.late += values.length - had
  return values.slice(0, n)
}
let n = 100
saw.late = 0
saw.observed = await collect((on, fail) => thing.observeProperty('level', on, fail), () => thing.writeProperty('level', ++n), 2)
saw.events = await collect((on, fail) => thing.subscribeEvent('alarm', on, fail), () => thing.invokeAction('ring', 'fire'), 2)

console.log(JSON.stringify(saw))
await servient.shutdown()
process.exit(0)
