import { call, read, stream } from './lmosd.mjs'

console.log(await call('forecast', 'today', { city: 'Bonn' }))
for await (const part of stream('forecast', 'week', { days: 2 })) process.stdout.write(part)
console.log(await read('forecast', 'units'))
try {
  await call('forecast', 'today', { town: 'Bonn' })
} catch (e) {
  console.log(e.code, e.message)
}
