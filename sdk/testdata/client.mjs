// Reads requests, one JSON object a line, and writes the responses, one a line, with the id of the request.
import { createReadStream } from 'node:fs'
import { createInterface } from 'node:readline'
import { call, find, read, start, stream, task, watch, write } from '../js/lmosd.mjs'

const say = (id, members) => console.log(JSON.stringify({ id, ...members }))

async function * limit (items, count) {
  for await (const item of items) {
    yield item
    if (--count === 0) return
  }
}

/** Calls methods of a task, and yields the result or the code of each, with the status after it. */
async function * steps (t, all) {
  for (const [method, ...args] of all) {
    if (method === 'wait' && args.length) args[0] = { timeout: args[0] }
    const result = await t[method](...args).catch((e) => { if (e.code) return e.code; throw e })
    yield [result ?? null, t.status]
  }
}

async function * upload ({ chunks, size, fail }) {
  for (let i = 0; i < chunks; i++) yield Buffer.alloc(size, 'x')
  if (fail) throw new Error('the microphone fell')
}

async function run ({ id, op, agent, name, input, timeout, count, ...more }) {
  const { delegation } = more
  switch (op) {
    case 'call': return call(agent, name, input, { timeout, delegation })
    case 'upload': return call(agent, name, upload(input), { timeout, contentType: 'audio/wav' })
    case 'bytes': return call(agent, name, Buffer.from(input))
    case 'file': return call(agent, name, createReadStream(process.argv[1]))
    case 'stream': {
      const parts = []
      for await (const part of limit(stream(agent, name, input, { timeout, delegation }), count)) parts.push(part)
      return parts
    }
    case 'watch':
      for await (const { name, value } of limit(watch(agent, more), count)) say(id, { item: [name, value] })
      return
    case 'later': { // sets the clock forward
      const now = Date.now
      Date.now = () => now() + 1000 * input
      return
    }
    case 'task': {
      const t = await start(agent, name, input)
      const done = []
      for await (const step of steps(t, more.steps)) done.push(step)
      for await (const step of steps(await task(t.id), [['refresh']])) done.push(step)
      return done
    }
    case 'read': return read(agent, name, { delegation })
    case 'write': return write(agent, name, input, { delegation })
    case 'find': return (await find(name, more)).map((a) => a.name)
  }
  throw new Error(op)
}

createInterface({ input: process.stdin }).on('line', (line) => {
  const request = JSON.parse(line)
  run(request).then((result) => say(request.id, { result }), ({ message, code = '', hint = '', next = [], problem }) => {
    say(request.id, { error: { message, code, hint, next, issues: problem?.validationErrors ?? [] } })
  })
}).on('close', () => process.exit())
