import { start } from './lmosd.mjs'

const task = await start('baker', 'bake')
try {
  console.log(await task.wait({ timeout: 60 }))
} catch (e) {
  if (e.code !== 'LMOS-1428') throw e
  console.log(Object.values(task.inputs).map((i) => i.message)) // it requires input
  await task.answer({ topping: 'salt' })
  console.log(await task.wait())
}
