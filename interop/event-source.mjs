// The EventSource of Node.js listens to the directory's events at the URL of the first argument, and prints each on a line. It keeps
// no process alive while it waits to connect again.
setInterval(() => {}, 1000)
const source = new EventSource(process.argv[2])
for (const name of ['thing_created', 'thing_updated', 'thing_deleted', 'lmosd:missed']) {
  source.addEventListener(name, (e) => console.log(JSON.stringify({ name, id: e.lastEventId, data: JSON.parse(e.data) })))
}
source.onopen = () => console.log('{"name":"open"}')
