// node-wot explores a directory. The URL of the directory's own TD is the first argument, a query in JSONPath the second. What it
// saw goes to standard output as JSON.
import core from '@node-wot/core'
import bindings from '@node-wot/binding-http'

const [url, query] = process.argv.slice(2)
const servient = new core.Servient()
servient.addClientFactory(new bindings.HttpClientFactory(null))
const wot = await servient.start()
const saw = { titles: [], errors: [] }

const found = await wot.exploreDirectory(url)
for await (const td of found) {
  saw.titles.push(td.title)
  saw.id = td.id
}
if (found.error) saw.errors.push(String(found.error))

const directory = await wot.consume(await wot.requestThingDescription(url))
const description = directory.getThingDescription()
saw.type = description['@type']
saw.affordances = [description.properties, description.actions, description.events].map((all) => Object.keys(all).sort())
const page = await directory.readProperty('things', { uriVariables: { offset: 1, limit: 1 } })
saw.page = (await page.value()).length
const thing = await directory.invokeAction('retrieveThing', undefined, { uriVariables: { id: saw.id } })
saw.retrieved = (await thing.value()).id === saw.id
const matches = await directory.invokeAction('searchJSONPath', undefined, { uriVariables: { query } })
saw.matches = await matches.value()

const one = await wot.requestThingDescription(new URL('/things/' + encodeURIComponent(saw.id), url).href)
saw.one = one.id === saw.id
console.log(JSON.stringify(saw))
await servient.shutdown()
process.exit(0)
