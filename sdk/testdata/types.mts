// Compiled by a test, and not run: the types of lmosd.d.mts.
import { agent, call, find, LmosdError, Mesh, NotRunning, read, start, stream, Task, type Value, watch } from '../js/lmosd.mjs'

type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends (<T>() => T extends B ? 1 : 2) ? true : false
const same = <A, B>(_: Same<A, B>): void => {}

same<Value<{ city: 'string', days: 'integer?' }>, { city: string, days?: number }>(true)
same<Value<['boolean']>, boolean[]>(true)
same<Value<{ at: { lat: 'number' }, near: [{ n: 'integer' }] }>, { at: { lat: number }, near: { n: number }[] }>(true)
same<Value<{ type: 'string', maxLength: 3 }>, string>(true)
same<Value<{ enum: readonly ['on', 'off'] }>, 'on' | 'off'>(true)

const lamp = agent('lamp', { capabilities: ['urn:x', { id: 'urn:y', version: '2' }], version: '1.0.0' })
  .state('level', 'integer', 0, { minimum: 0 })
  .event('storm', 'string')
  .property('note', { text: 'string' }, () => ({ text: 'x' }), ({ text }, { caller }) => console.log(text.length, caller?.roles.length))
  .action('today', { city: 'string' }, ({ city }, signal, _ask, { deadline }) => {
    same<typeof city, string>(true)
    console.log(signal.aborted, deadline?.getTime())
    return city
  }, { output: 'string', safe: true })
  .action('week', { days: 'integer?' }, function * ({ days = 7 }) { for (let i = 0; i < days; i++) yield i })
  .action('none', undefined, (nothing) => { same<typeof nothing, undefined>(true) })
  .action('hear', 'chunks', async (speech) => {
    let n = 0
    for await (const chunk of speech) n += chunk.length
    return `${n} of ${speech.contentType}`
  }, { output: 'string' })
  .action('parts', { n: 'integer' }, async function * ({ n }) { for (let i = 0; i < n; i++) yield `${i}` }, { output: 'string' })
  .action('bake', undefined, async (_, _signal, ask) => {
    const wish = await ask('What?', { topping: 'string', large: 'boolean?' })
    same<typeof wish, { topping: string, large?: boolean } | null>(true)
    return wish?.topping ?? ''
  }, { output: 'string', requiresInput: true, synchronous: false })
lamp.emit('storm', 'hail')

// @ts-expect-error a type with a typo
agent('x').action('a', { city: 'strng' }, () => {})
// @ts-expect-error the output is a string
agent('x').action('a', undefined, () => 1, { output: 'string' })
// @ts-expect-error the value is a number
agent('x').state('a', 'integer', 'one')
// @ts-expect-error the member may be missing
agent('x').action('a', { days: 'integer?' }, ({ days }) => days + 1)

export async function client (): Promise<void> {
  const text = await call<string>('lamp', 'today', { city: 'Bonn' }, { timeout: 5 })
  for await (const part of stream<string>('lamp', 'parts', { n: 2 })) console.log(part.length, text.length)
  const run: Task = await start('lamp', 'bake')
  try {
    await run.wait({ timeout: 5 })
  } catch (e) {
    if (e instanceof NotRunning) console.error(e.hint, e.retryable)
    else if (e instanceof LmosdError && e.code === 'LMOS-1428') await run.answer({ topping: 'salt' })
    else throw e
  }
  for await (const { name, value } of watch<string>('lamp', { event: 'storm' })) console.log(name, value.length)
  console.log((await find('lamp', { limit: '3' }))[0]?.name, await read<number>('lamp', 'level'), new Mesh('http://127.0.0.1:4668', 'x'))
}
await lamp.run()
