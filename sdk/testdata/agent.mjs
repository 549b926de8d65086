// The lamp of the tests, in JavaScript. It unregisters and ends with its standard input.
import { existsSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { agent, LmosdError } from '../js/lmosd.mjs'

const point = { lat: 'number', lon: 'number?' }
const orNull = (type) => ({ oneOf: [{ type }, { type: 'null' }] })
const place = {
  type: 'object', required: ['name'], properties: { name: { type: 'string' }, at: orNull('object'), near: { type: 'array' } }
}
let visit = ''
let note

const over = (signal) => new Promise((resolve) => signal.addEventListener('abort', resolve))
const hung = () => lamp.set('hung', lamp.get('hung') + 1)
const who = ({ id, lentBy }) => lentBy ? `${id} for ${lentBy}` : id

const ping = Number(process.env.LAMP_PING ?? 20)
const lamp = agent(process.argv[2], { description: 'A lamp.', capabilities: ['urn:example:lamp'], version: '1.2.3', ping })
  .state('units', 'string', 'celsius')
  .state('level', { type: 'integer', minimum: 0, maximum: 100 }, 0)
  .state('hung', 'integer', 0, { readOnly: true })
  .event('alarm', 'string')
  .action('add', { a: 'integer', b: 'integer?' }, ({ a, b = 1 }) => a + b, {
    output: 'integer', safe: true, description: 'Adds.'
  })
  .action('echo', 'string', async (text) => text, { output: 'string' })
  .action('count', { to: 'integer' }, function * ({ to }) { for (let i = 1; i <= to; i++) yield `${i} ` })
  .action('numbers', { to: 'integer' }, async function * ({ to }) { for (let i = 1; i <= to; i++) yield i })
  .action('move', { place, by: orNull('number') }, ({ place, by }) => ({
    name: place.name,
    at: { lat: (place.at?.lat ?? 0) + (by || 1), lon: place.at?.lon ?? 0 },
    near: (place.near ?? []).map(({ lat }) => ({ lat, lon: 0 }))
  }), { output: { name: 'string', at: point, near: [point] } })
  .action('ring', { text: 'string' }, ({ text }) => lamp.emit('alarm', text))
  .action('fail', undefined, () => { throw new RangeError('out of order') })
  .action('refuse', undefined, () => { throw new LmosdError('no bulb', { code: 'LMOS-1529', hint: 'screw one in' }) })
  .action('unwritable', undefined, () => 1n)
  .action('huge', { size: 'integer' }, ({ size }) => 'x'.repeat(size), { output: 'string' })
  .action('hang', undefined, async (_, signal) => { await over(signal); hung() })
  .action('place', undefined, async (_, signal, ask) => {
    const room = await ask('Which room?', { name: 'string', dim: 'boolean?' })
    return room ? room.name + (room.dim ? ', dimly' : '') : 'nowhere'
  }, { output: 'string', requiresInput: true })
  .action('drip', undefined, async function * (_, signal) {
    try {
      for (;;) {
        yield 'drop'
        await sleep(1)
      }
    } finally {
      hung()
    }
  })
  .action('sleep', undefined, (_, signal) => sleep(60_000, undefined, { signal }).finally(hung))
  .action('hear', 'chunks', async (sound) => {
    let n = 0
    for await (const chunk of sound) n += chunk.length
    return `${n} of ${sound.contentType}`
  }, { output: 'string' })
  .action('parrot', 'chunks', async function * (sound) { for await (const chunk of sound) yield chunk })
  .action('sip', 'chunks', async (sound) => {
    for await (const chunk of sound) return chunk.toString('utf8', 0, 9)
  })
  .action('nap', 'chunks', async (sound, signal) => {
    try {
      await sound.next()
      await over(signal)
    } finally {
      hung()
    }
  })
  .property('peak', 'integer', () => existsSync('/proc/self/status')
    ? Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'ascii'))[1]) : 0)
  .action('slow', { text: 'string' }, ({ text }) => text, { output: 'string', synchronous: false })
  .action('crash', undefined, () => process.exit(1))
  .property('version', 'string', () => '1.2.3')
  .property('visitor', 'string', ({ caller }) => `${visit}, read by ${who(caller)}`, (v, { caller, deadline }) => {
    visit = `${v} by ${who(caller)}${deadline > Date.now() ? '' : ', who has no time'}`
  })
  .property('note', 'any', () => note, (v) => { note = v })

console.log('ready', await lamp.start())
process.stdin.on('end', () => lamp.stop()).resume()
