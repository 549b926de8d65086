import { agent } from './lmosd.mjs'

await agent('scribe')
  .action('hear', 'chunks', async (speech) => {
    let size = 0
    for await (const chunk of speech) size += chunk.length // Buffers, while they come
    return `${size} bytes of ${speech.contentType}`
  }, { output: 'string' })
  .run()
