// Agents for lmosd in JavaScript: serve actions to the mesh, and call others, through the node of this machine.
//
//   import { agent, call } from './lmosd.mjs'
//   await agent('weather').action('getWeather', { question: 'string' }, ({ question }) => 'sunny').run()
//
//   await call('weather', 'getWeather', { question: 'Rain in Bonn?' })
//
// One file, Node 18 or later, no dependency. The agent dials the node (one WebSocket, RFC 6455), so it needs no port of its own.
// Apache-2.0.

import { createHash, randomBytes, randomUUID } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import http from 'node:http'
import https from 'node:https'
import { homedir } from 'node:os'
import { isAbsolute, join } from 'node:path'

const MAX_MESSAGE = 16 << 20 // bytes of one WebSocket message
const PING_EVERY = 20_000 // ms without a word from the node, after which it is asked whether it is there

/** What went wrong, as the node or an agent says it (RFC 9457). Throw it in an action to choose status and title. */
export class LmosdError extends Error {
  constructor(title, { code = 'LMOS-1502', status = 500, hint = '', problem = {} } = {}) {
    super(title)
    Object.assign(this, { name: 'LmosdError', code, status, hint, problem })
  }
}

// --- where the node is

/** The node of this machine and its token: LMOSD_NODE and LMOSD_TOKEN, else the socket in the data folder, else the default port. */
export function local() {
  const env = process.env
  let token = env.LMOSD_TOKEN ?? ''
  if (env.LMOSD_NODE) return { node: env.LMOSD_NODE, token }
  const home = isAbsolute(env.XDG_DATA_HOME ?? '') ? env.XDG_DATA_HOME : join(homedir(), '.local', 'share')
  const folder = env.LMOSD_DATA_DIR || join(home, 'lmosd')
  const socket = join(folder, 'lmosd.sock')
  if (existsSync(socket)) return { node: socket, token }
  try {
    token ||= readFileSync(join(folder, 'api.token'), 'ascii').trim()
  } catch { /* the node says so if it needs one */ }
  return { node: 'http://127.0.0.1:4668', token }
}

/** Begins a request to the node. */
function begin(at, method, path, headers) {
  const options = { method, path, headers: { ...headers, ...(at.token && { Authorization: `Bearer ${at.token}` }) } }
  if (at.node.startsWith('unix:') || at.node.startsWith('/')) {
    return http.request({ ...options, socketPath: at.node.replace(/^unix:/, ''), host: 'localhost' })
  }
  const url = new URL(at.node)
  return (url.protocol === 'https:' ? https : http).request({ ...options, host: url.hostname.replace(/^\[|\]$/g, ''), port: url.port || undefined })
}

function unreachable(at, cause) {
  return new LmosdError(`no node answers at ${at.node}: ${cause.message}`, { code: 'LMOS-3001', hint: 'lmosd run' })
}

function problem(raw, status) {
  let p = {}
  try { p = JSON.parse(raw) ?? {} } catch { /* other words */ }
  return new LmosdError(p.detail || p.title || `status ${status}`, { code: p.code ?? 'LMOS-1500', status, hint: p.hint ?? '', problem: p })
}

// --- asking

/** Finds, calls, reads, writes and watches agents through one node. */
export class Mesh {
  constructor(node, token) {
    const at = local()
    this.at = { node: node ?? at.node, token: token ?? at.token }
  }

  /** Sends a request and resolves with the response, whose body is not read yet. */
  open(method, path, body, headers = {}, signal) {
    return new Promise((resolve, reject) => {
      const r = begin(this.at, method, path, { ...headers, ...(body !== undefined && { 'Content-Length': Buffer.byteLength(body) }) })
      r.on('error', (e) => reject(signal?.aborted ? signal.reason : unreachable(this.at, e)))
      r.on('response', (response) => {
        if (response.statusCode < 400) return resolve(response)
        all(response).then((raw) => reject(problem(raw, response.statusCode)), reject)
      })
      signal?.addEventListener('abort', () => r.destroy(), { once: true })
      r.end(body)
    })
  }

  /** Sends a request and resolves with the answer: JSON as its value, text as string, anything else as Buffer, none as undefined. */
  async json(method, path, value, headers = {}, signal) {
    const body = value === undefined ? undefined : JSON.stringify(value)
    const r = await this.open(method, path, body, { ...(body !== undefined && { 'Content-Type': 'application/json' }), ...headers }, signal)
    const raw = await all(r)
    const type = (r.headers['content-type'] ?? '').split(';')[0]
    if (raw.length === 0) return undefined
    if (type === 'application/json' || type.endsWith('+json')) return JSON.parse(raw)
    return type.startsWith('text/') ? raw.toString() : raw
  }

  /** The agents that fit: find('weather'), find('', { capability: 'urn:example:weather' }). */
  async find(words = '', query = {}) {
    const q = new URLSearchParams({ ...(words && { q: words }), ...query })
    return (await this.json('GET', `/v1/find?${q}`)).items
  }

  /** Calls an action; timeout is in seconds. */
  call(agent, action, input, { timeout = 30, signal } = {}) {
    return this.json('POST', `${thing(agent)}/actions/${encodeURIComponent(action)}`, input, { Prefer: `wait=${Math.max(1, Math.floor(timeout))}` }, signal)
  }

  /** The value of a property; without a name, an object of all that can be read. */
  read(agent, name) { return this.json('GET', `${thing(agent)}/properties${name ? '/' + encodeURIComponent(name) : ''}`) }

  /** Sets a property. */
  write(agent, name, value) { return this.json('PUT', `${thing(agent)}/properties/${encodeURIComponent(name)}`, value) }

  /** Yields { name, id, value } of an event, of a property, or of all events, until the loop is left. A connection that breaks is
   * made again, and what came meanwhile is asked for. */
  async * watch(agent, { event, property, after = '' } = {}) {
    const path = thing(agent) + (property ? `/properties/${encodeURIComponent(property)}` : `/events${event ? '/' + encodeURIComponent(event) : ''}`)
    for (let pause = 100, known = false; ; pause = Math.min(5000, 2 * pause)) {
      let r
      try {
        r = await this.open('GET', path, undefined, { Accept: 'text/event-stream', ...(after && { 'Last-Event-ID': after }) })
        known = true
        for await (const e of sse(r)) {
          pause = 100
          if (e.name === 'error') throw problem(e.data, 500)
          after = e.id || after
          yield { name: e.name, id: e.id, value: e.data ? JSON.parse(e.data) : undefined }
        }
      } catch (e) {
        if (!known || e instanceof LmosdError && e.code !== 'LMOS-3001') throw e
      } finally {
        r?.destroy()
      }
      await new Promise((wake) => setTimeout(wake, pause))
    }
  }
}

async function all(stream) {
  const parts = []
  for await (const part of stream) parts.push(part)
  return Buffer.concat(parts)
}

const thing = (agent) => '/things/' + encodeURIComponent(agent)

/** The events of a stream (HTML, Server-sent events). */
async function * sse(stream) {
  let rest = ''
  let e = { name: '', id: '', data: [] }
  stream.setEncoding('utf8')
  for await (const part of stream) {
    const lines = (rest + part).split(/\r\n|\n|\r(?!$)/)
    rest = lines.pop()
    for (const line of lines) {
      if (line === '') {
        if (e.data.length) yield { name: e.name, id: e.id, data: e.data.join('\n') }
        e = { name: '', id: e.id, data: [] }
        continue
      }
      const at = line.indexOf(':')
      const [field, value] = at < 0 ? [line, ''] : [line.slice(0, at), line.slice(at + 1).replace(/^ /, '')]
      if (field === 'event') e.name = value
      else if (field === 'id') e.id = value
      else if (field === 'data') e.data.push(value)
    }
  }
}

/** These ask through the node of this machine, see Mesh. */
export const find = (...args) => new Mesh().find(...args)
export const call = (...args) => new Mesh().call(...args)
export const read = (...args) => new Mesh().read(...args)
export const write = (...args) => new Mesh().write(...args)
export const watch = (...args) => new Mesh().watch(...args)

// --- serving

/** An agent of this name. See Agent for what it can offer. */
export const agent = (name, about) => new Agent(name, about)

/** What an agent offers. Each method returns the agent, so that they can be written one after the other. */
export class Agent {
  constructor(name, { description, capabilities = [], id, version, tool = false, node, token, ready, signal } = {}) {
    this.about = {
      title: name, '@type': tool ? 'lmos:Tool' : 'lmos:Agent',
      ...(id && { id }), ...(description && { description }), ...(version && { version: { instance: version } }),
      ...(capabilities.length && { 'lmos:capabilities': capabilities.map((c) => ({ id: c, name: c })) }),
      properties: {}, actions: {}, events: {}
    }
    Object.assign(this, { node, token, ready, signal, actions: {}, reads: {}, writes: {}, topics: new Map(), id: undefined })
  }

  /** An action. The schema of its input is a TD data schema, or an object of types by name: { question: 'string' }. The function
   * takes the input and an AbortSignal, and returns the output or a promise of it; a generator answers in parts. */
  action(name, input, f, { output, ...about } = {}) {
    this.about.actions[name] = { synchronous: true, ...about, ...(input && { input: schema(input) }), ...(output && { output: schema(output) }) }
    this.actions[name] = f
    return this
  }

  /** A property of two functions; without write it is read-only. */
  property(name, type, read, write) {
    this.about.properties[name] = { ...schema(type), ...(!write && { readOnly: true }) }
    this.reads[name] = read
    if (write) this.writes[name] = write
    return this
  }

  /** A property that the agent holds: others read, write and observe it. set(name, value) changes it. */
  state(name, type, value) {
    const held = { value }
    this.about.properties[name] = { ...schema(type), observable: true }
    this.reads[name] = () => held.value
    this.writes[name] = (v) => this.set(name, v)
    this.topics.set('property ' + name, { held, listeners: new Set() })
    return this
  }

  set(name, value) {
    const t = this.topics.get('property ' + name)
    t.held.value = value
    for (const tell of t.listeners) tell(value)
  }

  /** An event; emit(name, value) tells everybody who has subscribed. */
  event(name, type) {
    this.about.events[name] = type ? { data: schema(type) } : {}
    this.topics.set('event ' + name, { listeners: new Set() })
    return this
  }

  emit(name, value) {
    for (const tell of this.topics.get('event ' + name).listeners) tell(value)
  }

  /** Serves until stop is called. The first attempt to reach the node must work; a connection that breaks later is made again,
   * with pauses up to five seconds. */
  async run() {
    this.stopping = new AbortController()
    this.signal?.addEventListener('abort', () => this.stop(), { once: true })
    for (let pause = 100, known = false; !this.stopping.signal.aborted; pause = Math.min(5000, 2 * pause)) {
      try {
        await this.#serve(() => { known = true; pause = 50 })
      } catch (e) {
        if (!known) throw e
        if (e instanceof LmosdError && e.code !== 'LMOS-3001') throw e
      }
      if (this.stopping.signal.aborted) return
      await new Promise((wake) => {
        const timer = setTimeout(wake, pause * (0.5 + Math.random()))
        this.stopping.signal.addEventListener('abort', () => { clearTimeout(timer); wake() }, { once: true })
      })
    }
  }

  /** Withdraws the agent and ends run. */
  stop() {
    this.stopping?.abort()
    if (this.socket && this.id) this.socket.send({ messageType: 'unregisterThing', messageId: randomUUID(), thingId: this.id })
    this.socket?.close()
  }

  async #serve(known) {
    const at = local()
    const s = await WebSocket.dial({ node: this.node ?? at.node, token: this.token ?? at.token })
    const running = new Map()
    this.socket = s
    try {
      s.send({ messageType: 'registerThing', messageId: 'register', data: this.about })
      for await (const m of s.messages()) {
        if (m.messageType === 'thingRegistered') {
          this.id = member(m, 'thingID')
          known()
          this.ready?.(this.id)
        } else if (m.messageType === 'error' && member(m, 'correlationID') === 'register') {
          throw new LmosdError(m.detail || m.title, { status: Number(m.status), problem: m })
        } else if (m.messageType && !['error', 'acknowledgement'].includes(m.messageType)) {
          this.#take(s, running, m)
        }
      }
    } finally {
      for (const r of running.values()) r.end()
      s.close()
    }
  }

  /** Begins what the node asks for, or ends it. */
  #take(s, running, m) {
    const kind = m.messageType.toLowerCase()
    const ends = { cancelaction: 'invokeaction', unobserveproperty: 'observeproperty', unsubscribeevent: 'subscribeevent' }[kind]
    if (ends) {
      const ids = [member(m, 'actionID'), member(m, 'correlationID'), member(m, 'messageID')]
      const meant = ids.map((id) => running.get(id)).filter(Boolean)
      for (const r of meant.length ? meant : [...running.values()].filter((r) => r.kind === ends && r.name === nameOf(m))) r.end()
      s.send(reply(m, 'acknowledgement', { message: m.messageType }))
      return
    }
    const abort = new AbortController()
    const r = { kind, name: nameOf(m), end: () => abort.abort() }
    const keys = [member(m, 'messageID'), member(m, 'correlationID')].filter(Boolean)
    for (const key of keys) running.set(key, r)
    this.#answer(s, m, kind, r.name, abort.signal).catch((e) => s.send(failure(m, e))).then(() => {
      for (const key of keys) if (running.get(key) === r) running.delete(key)
    })
  }

  async #answer(s, m, kind, name, signal) {
    const reading = (value) => s.send(reply(m, 'propertyReading', { property: name, name, data: value, value, timestamp: now() }))
    const status = (word, output) => s.send(reply(m, 'actionStatus', { action: name, name, status: word, ...(output !== undefined && { output }) }))
    const topic = this.topics.get((kind === 'observeproperty' ? 'property ' : 'event ') + name)
    if (kind === 'invokeaction' && this.actions[name]) {
      const input = m.input ?? m.data
      let output = await this.actions[name](input, signal)
      if (output?.[Symbol.asyncIterator] || output?.[Symbol.iterator] && typeof output.next === 'function') {
        for await (const part of output) {
          if (signal.aborted) return
          status('running', part)
        }
        output = undefined
      }
      status('completed', output)
    } else if (kind === 'readproperty' && this.reads[name]) {
      reading(await this.reads[name]())
    } else if (kind === 'writeproperty' && this.writes[name]) {
      const value = 'data' in m ? m.data : m.value
      await this.writes[name](value)
      reading(value)
    } else if (kind === 'observeproperty' && topic) {
      await listen(topic, reading, signal)
    } else if (kind === 'subscribeevent' && topic) {
      s.send(reply(m, 'acknowledgement', { message: m.messageType }))
      await listen(topic, (data) => s.send(reply(m, 'event', { event: name, name, data, timestamp: now() })), signal)
    } else {
      throw new LmosdError(`${m.messageType} of ${JSON.stringify(name)} is not offered`, { status: 404 })
    }
  }
}

/** Tells until the signal ends it. */
function listen(topic, tell, signal) {
  topic.listeners.add(tell)
  return new Promise((resolve) => {
    const leave = () => { topic.listeners.delete(tell); resolve() }
    if (signal.aborted) leave()
    else signal.addEventListener('abort', leave, { once: true })
  })
}

/** A member whose name ends in ID, in either spelling. */
const member = (m, name) => m[name] ?? m[name.slice(0, -1) + 'd']
const nameOf = (m) => m.name ?? m.property ?? m.action ?? m.event
const now = () => new Date().toISOString()

function reply(m, messageType, members) {
  const actionID = messageType === 'actionStatus' ? member(m, 'actionID') : undefined
  return {
    messageType, thingId: member(m, 'thingID'), messageId: randomUUID(),
    correlationId: member(m, 'correlationID') ?? member(m, 'messageID'), ...(actionID && { actionID }), ...members
  }
}

function failure(m, e) {
  const base = 'https://eclipse.dev/lmos/protocol/v1/errors'
  const status = e instanceof LmosdError ? e.status : 500
  const word = { 400: 'bad-request', 404: 'not-found', 405: 'operation-not-allowed' }[status] ?? 'internal-server-error'
  return reply(m, 'error', { type: `${base}#${word}`, title: e.message, status: String(status), detail: e.message, instance: `${base}/${randomUUID()}` })
}

/** A TD data schema of a type's name, of an object of types by name, or of a schema. */
function schema(type) {
  if (typeof type === 'string') return type === 'any' ? {} : { type }
  if (type.type || type.oneOf || type.enum || Object.keys(type).length === 0) return type
  return { type: 'object', properties: Object.fromEntries(Object.entries(type).map(([n, t]) => [n, schema(t)])), required: Object.keys(type) }
}

// --- WebSocket (RFC 6455), the client's side

class WebSocket {
  static dial(at) {
    return new Promise((resolve, reject) => {
      const key = randomBytes(16).toString('base64')
      const r = begin(at, 'GET', '/ws', {
        Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Version': 13, 'Sec-WebSocket-Key': key, 'Sec-WebSocket-Protocol': 'lmosprotocol'
      })
      r.on('error', (e) => reject(unreachable(at, e)))
      r.on('response', (response) => all(response).then((raw) => reject(problem(raw, response.statusCode)), reject))
      r.on('upgrade', (response, socket, head) => {
        const want = createHash('sha1').update(key + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64')
        if (response.headers['sec-websocket-accept'] === want) return resolve(new WebSocket(socket, head))
        socket.destroy()
        reject(new LmosdError('what answers is no WebSocket server', { code: 'LMOS-3001' }))
      })
      r.end()
    })
  }

  constructor(socket, head) {
    this.socket = socket
    this.head = head
    socket.setNoDelay(true)
    this.asked = false
    socket.setTimeout(PING_EVERY, () => {
      if (this.asked) return socket.destroy(new Error('the node does not answer'))
      this.asked = true
      this.frame(9, Buffer.alloc(0))
      socket.setTimeout(PING_EVERY)
    })
    socket.on('error', () => {}) // messages ends with it
  }

  send(message) { this.frame(1, Buffer.from(JSON.stringify(message))) }

  frame(op, data) {
    if (!this.socket.writable) return
    const mask = randomBytes(4)
    const n = data.length
    const head = Buffer.alloc(n < 126 ? 2 : n < 65536 ? 4 : 10)
    head[0] = 0x80 | op
    head[1] = 0x80 | (n < 126 ? n : n < 65536 ? 126 : 127)
    if (head.length === 4) head.writeUInt16BE(n, 2)
    if (head.length === 10) head.writeBigUInt64BE(BigInt(n), 2)
    const body = Buffer.allocUnsafe(n)
    for (let i = 0; i < n; i++) body[i] = data[i] ^ mask[i & 3]
    this.socket.write(Buffer.concat([head, mask, body]))
  }

  close() { this.socket.end() }

  /** Yields each message that is a JSON object; it ends with the connection. */
  async * messages() {
    let parts = []
    for await (const { op, final, data } of this.frames()) {
      if (op === 8) {
        this.frame(8, data.subarray(0, 2))
        this.socket.end()
        return
      }
      if (op === 9) this.frame(10, data)
      if (op > 2) continue
      parts.push(data)
      if (parts.reduce((sum, p) => sum + p.length, 0) > MAX_MESSAGE) throw new Error(`a message of more than ${MAX_MESSAGE} bytes`)
      if (!final) continue
      const value = op === 2 ? undefined : JSON.parse(Buffer.concat(parts))
      parts = []
      if (value && typeof value === 'object') yield value
    }
  }

  async * frames() {
    let buffer = this.head
    const need = (n) => buffer.length >= n
    const cut = function * () {
      while (need(2)) {
        let size = buffer[1] & 0x7f
        let at = 2
        if (size === 126) {
          if (!need(4)) return
          size = buffer.readUInt16BE(2)
          at = 4
        } else if (size === 127) {
          if (!need(10)) return
          size = Number(buffer.readBigUInt64BE(2))
          at = 10
        }
        if (size > MAX_MESSAGE) throw new Error(`a message of more than ${MAX_MESSAGE} bytes`)
        const mask = buffer[1] & 0x80 ? buffer.subarray(at, at += 4) : undefined
        if (!need(at + size)) return
        const data = Buffer.from(buffer.subarray(at, at + size))
        if (mask) for (let i = 0; i < size; i++) data[i] ^= mask[i & 3]
        const frame = { op: buffer[0] & 15, final: Boolean(buffer[0] & 0x80), data }
        buffer = buffer.subarray(at + size)
        yield frame
      }
    }
    yield * cut()
    for await (const part of this.socket) {
      this.asked = false
      buffer = buffer.length ? Buffer.concat([buffer, part]) : part
      yield * cut()
    }
  }
}
