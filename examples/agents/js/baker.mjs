import { agent } from './lmosd.mjs'

await agent('baker')
  .action('bake', undefined, async (_, signal, ask) => {
    const wish = await ask('What shall be on it?', { topping: 'string', large: 'boolean?' })
    if (!wish) return 'plain bread' // no answer
    return (wish.large ? 'large ' : '') + 'bread with ' + wish.topping
  }, { output: 'string', requiresInput: true })
  .run()
