import { setTimeout as sleep } from 'node:timers/promises'
import { agent, LmosdError } from './lmosd.mjs'

await agent('printer', { description: 'Prints slowly.', version: '1.0.0' })
  .property('ink', 'integer', () => 40)
  .action('copy', { text: 'string', times: 'integer' }, async ({ times }, signal) => {
    for (let i = 0; i < times; i++) await sleep(100, undefined, { signal }) // throws when it is cancelled
    return times
  }, { output: 'integer', synchronous: false }) // it takes long, and goes on without its caller
  .action('staple', { pages: 'integer' }, ({ pages }) => {
    if (pages > 40) throw new LmosdError(`${pages} pages are too thick`, { hint: 'staple 40 pages at most' })
  })
  .run()
