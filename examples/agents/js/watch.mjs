import { watch } from './lmosd.mjs'

for await (const { name, value } of watch('forecast', { event: 'storm' })) {
  console.log(name, value)
  break
}
