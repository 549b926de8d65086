import { agent } from './lmosd.mjs'

const forecast = agent('forecast', { capabilities: ['urn:example:forecast'] })
  .state('units', 'string', 'celsius')
  .event('storm', 'string')
  .action('today', { city: 'string' }, ({ city }) => `sunny in ${city}`, {
    output: 'string', safe: true, description: 'Reports the weather.'
  })
  .action('week', { days: 'integer?' }, function * ({ days = 7 }) {
    for (let day = 1; day <= days; day++) yield `day ${day}: sunny\n`
  })
  .action('warn', { of: 'string' }, ({ of }) => forecast.emit('storm', of))

await forecast.run()
