import { call } from './lmosd.mjs'

function * speech () {
  yield Buffer.from('one, ')
  yield Buffer.from('two')
}

console.log(await call('scribe', 'hear', speech(), { contentType: 'audio/wav' }))
