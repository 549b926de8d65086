// Prints the schemas that lmosd.mjs derives from types.
import { agent } from '../js/lmosd.mjs'

const none = () => {}
const a = agent('types', { capabilities: ['urn:x', { id: 'urn:y', name: 'Y', version: '2' }], id: 'urn:x:types', tool: true })
  .action('nothing', undefined, none)
  .action('plain', { s: 'string', i: 'integer', anything: 'any', maybe: 'number?' }, none, {
    output: 'object', description: 'Says more.'
  })
  .action('lists', { a: ['string'], b: [{ n: 'integer' }] }, none, { idempotent: true, title: 'Lists' })
  .action('own', { type: 'string', maxLength: 3 }, none, { output: { oneOf: [{ type: 'string' }] }, synchronous: false })
  .action('nested', { at: { lat: 'number', type: { of: 'string?' } } }, none, { output: { enum: [1, 2] } })
  .property('one', 'boolean', none)
  .state('two', { const: 3 }, 3, { readOnly: true })
  .event('three')
const errors = {}
for (const [name, f] of Object.entries({
  twice: () => a.event('three'),
  unnamed: () => a.property('', 'any', none),
  emit: () => a.emit('none'),
  set: () => a.set('one', 1),
  agent: () => agent('')
})) {
  try { f() } catch (e) { errors[name] = e.code }
}
console.log(JSON.stringify({ about: a.about, errors }))
