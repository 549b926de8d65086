// An endpoint for embeddings, as OpenAI's: a text points to the topics that it is about. It prints its port, and ends with its input.
import { createServer } from 'node:http'

const topics = [/invoice|owe|pay/i, /rain|umbrella|forecast/i]

createServer(async (request, response) => {
  let body = ''
  for await (const part of request) body += part
  const { input, model } = JSON.parse(body)
  if (request.method !== 'POST' || request.url !== '/v1/embeddings' || model !== 'stub') return response.writeHead(404).end('{}')
  const data = [input].flat().map((text, index) => (
    { object: 'embedding', index, embedding: [...topics.map(topic => topic.test(text) ? 1 : 0), 0.01] }))
  response.setHeader('Content-Type', 'application/json')
  response.end(JSON.stringify({ object: 'list', data, model, usage: { prompt_tokens: 0, total_tokens: 0 } }))
}).listen(0, '127.0.0.1', function () { console.log(this.address().port) })
process.stdin.resume().on('end', () => process.exit())
