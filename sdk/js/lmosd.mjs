// Agents for lmosd in JavaScript: serve actions to the mesh, and call other agents, through the node of this machine.
//
//   import { agent, call } from './lmosd.mjs'
//   await agent('weather').action('getWeather', { question: 'string' }, ({ question }) => 'sunny').run()
//
//   await call('weather', 'getWeather', { question: 'Rain in Bonn?' })
//
// One file for Node 18 or later, without dependencies: install the package, or copy this file beside your program, with lmosd.d.mts
// for TypeScript and editors. The agent connects to the node (one WebSocket, RFC 6455), so it needs no port. It does not run in a
// browser.
//
// Limits: inputs, outputs, values and events are JSON of at most 4 MiB. Other text arrives as a string, other data in base64. An
// input of 'chunks' has no limit. A response stream that is 1000 parts ahead of its reader is cut off.
//
// Apache-2.0.

import { createHash, randomBytes, randomUUID } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import http from 'node:http'
import https from 'node:https'
import { homedir } from 'node:os'
import { isAbsolute, join } from 'node:path'
import { pipeline, Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'

const MAX_MESSAGE = 4 << 20 // bytes of one WebSocket message, the limit of the node
const WINDOW = 256 << 10 // unread bytes of a request stream, with the headers of the frames
const MAX_CHUNK = 64 << 10 // bytes of a request stream in one frame
const [CHUNK, END, ABORT, CREDIT, STOP] = [1, 2, 3, 4, 5] // the kinds of binary frames: docs/sdk.md
const ABSENCE = 60_000 // ms for which watch tries to reach a node that was lost
const FIRST_PAUSE = 100 // milliseconds before a new connection; the pause doubles
const MAX_PAUSE = 5000
const LASTING = 5000 // ms after which a connection without events counts as established
const RETRYABLE = new Set([1429, 1503, 1504, 1529, 1531, 3001, 3002, 3021, 3030, 3031].map((n) => `LMOS-${n}`))

/** An error of the node or of an agent (RFC 9457). An agent throws it to choose the text: message is the cause, hint the remedy. The
 * steps that can help are in next, an array of { kind, args }; the defects of an input are in problem.validationErrors. The
 * command lmosd errors ls lists the codes. */
export class LmosdError extends Error {
  constructor(message, { code = 'LMOS-1502', hint = '', problem = {}, cause } = {}) {
    super(message, { cause })
    Object.assign(this, { name: 'LmosdError', code, hint, problem, next: problem.next ?? [], retryable: RETRYABLE.has(code) })
  }
}

/** No node answers (LMOS-3001). If it ends the program, one line is printed instead of a stack, and the exit code is 3. */
export class NotRunning extends LmosdError {
  constructor(message, cause) {
    super(message, { code: 'LMOS-3001', hint: 'start one: lmosd run', cause })
    this.name = 'NotRunning'
    oneLine(this)
  }
}

/** Makes an error that nothing catches end the program with one line: its stack would have lines of this file only. An error that
 * is not caught reaches the process before the next task. */
function oneLine(error) {
  if (process.listenerCount('uncaughtException') || process.listenerCount('unhandledRejection')) return
  const end = (e) => {
    if (e !== error) console.error(e)
    else console.error(`lmosd: ${e.message} (${e.code})${e.hint && '; ' + e.hint}`)
    process.exit(e instanceof NotRunning ? 3 : 1)
  }
  process.once('uncaughtException', end)
  setImmediate(() => process.off('uncaughtException', end))
}

const fault = (code, message, hint, cause) => new LmosdError(message, { code: `LMOS-${code}`, hint, cause })

/** The error of a problem document, or of an error message of the WebSocket. */
function fromProblem(p) {
  return new LmosdError(p?.detail || p?.title || 'the node refused', { code: p?.code || 'LMOS-1500', hint: p?.hint, problem: p ?? {} })
}

const lost = (e) => fault(3002, `the connection to the node broke: ${e?.message ?? 'it was closed'}`, 'check the node: lmosd status', e)

// --- address of the node

/** The node of this machine and its token: LMOSD_NODE and LMOSD_TOKEN, else the socket in the data folder, else the default
 * port. */
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
  } catch { /* the node refuses the request if it requires one */ }
  return { node: 'http://127.0.0.1:4668', token }
}

/** Starts a request to a node: to a URL, or to the path of a unix socket, with or without "unix:". It has a connection of its own. */
function request(at, options) {
  const headers = { ...options.headers, ...(at.token && { Authorization: `Bearer ${at.token}` }) }
  options = { ...options, headers, agent: false }
  if (at.node.startsWith('unix:') || at.node.startsWith('/')) {
    return http.request({ ...options, socketPath: at.node.replace(/^unix:/, ''), host: 'localhost' })
  }
  let url
  try { url = new URL(at.node) } catch { /* reported below */ }
  const module = { 'http:': http, 'https:': https }[url?.protocol]
  if (!module) throw fault(2000, `expected the URL or the socket of a node, got ${at.node}`, 'for example http://127.0.0.1:4668')
  return module.request({ ...options, host: url.hostname.replace(/^\[|\]$/g, ''), port: url.port || undefined })
}

const REASONS = { ECONNREFUSED: 'connection refused', ENOENT: 'no such file or directory', ECONNRESET: 'the connection was reset' }

function unreachable(at, cause) {
  return new NotRunning(`no node answers at ${at.node}: ${REASONS[cause.code] ?? (cause.message || cause.code)}`, cause)
}

/** The error of a response with an error status. */
async function refused(at, response) {
  try {
    return fromProblem(JSON.parse(await all(response)))
  } catch (cause) {
    return fault(3002, `the server at ${at.node} is not a node: status ${response.statusCode}`, 'check it: lmosd status', cause)
  }
}

async function all(stream) {
  const parts = []
  for await (const part of stream) parts.push(part)
  return Buffer.concat(parts)
}

// --- consumer

/** Finds, calls, reads, writes and watches agents through one node. The option signal of a method is an AbortSignal that ends it, and
 * delegation a delegation, by which the node uses the right of another caller: the token that lmosd delegate prints. */
export class Mesh {
  constructor(node, token) {
    const at = local()
    this.at = { node: node ?? at.node, token: token ?? at.token }
  }

  /** Sends a request and resolves with the response, whose body is not read yet. A source is sent as the body while it is read;
   * its error goes to failed. */
  open(method, path, { body, source, failed, headers, signal } = {}) {
    return new Promise((resolve, reject) => {
      const about = body !== undefined && { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) }
      const r = request(this.at, { method, path, headers: { ...about, ...headers }, signal })
      r.on('error', (e) => reject(signal?.aborted ? signal.reason : unreachable(this.at, e)))
      r.on('response', (response) => {
        if (response.statusCode < 400) return resolve(response)
        refused(this.at, response).then(reject)
      })
      if (source === undefined) return r.end(body)
      const from = Readable.from(source instanceof Uint8Array ? [source] : source, { objectMode: true, highWaterMark: 1 })
      from.on('error', (e) => { failed(e); reject(e) })
      pipeline(from, r, () => {}) // the reader of the response gets the error
    })
  }

  /** Sends a request and resolves with the response: JSON as its value, text as string, other types as Buffer, no content as
   * undefined. */
  async json(method, path, options) {
    const r = await this.open(method, path, options)
    const raw = await all(r).catch((e) => { throw lost(e) })
    const type = (r.headers['content-type'] ?? '').split(';')[0]
    if (raw.length === 0) return undefined
    if (type === 'application/json' || type.endsWith('+json')) return JSON.parse(raw)
    return type.startsWith('text/') ? raw.toString() : raw
  }

  /** Resolves with the best matching agents, at most limit (32), as objects with id and name: find('weather'),
   * find('', { capability: 'urn:example:weather' }). */
  async find(text = '', query = {}) {
    const q = new URLSearchParams({ ...(text && { q: text }), ...query })
    return (await this.json('GET', `/v1/find?${q}`)).items
  }

  /** Yields all matching agents, the best first, page by page. */
  async * findAll(text = '', query = {}) {
    for (let q = { ...(text && { q: text }), ...query }; q;) {
      const page = await this.json('GET', `/v1/find?${new URLSearchParams(q)}`)
      yield * page.items
      q = page.next && { page: page.next }
    }
  }

  /** Calls an action and resolves with its output, or undefined. The parts of a response stream are joined: texts as one text,
   * others as an array. After timeout seconds, at most 600, the error is LMOS-1504; an action that is not synchronous continues.
   * A Buffer, a Readable and other iterators of bytes are sent unchanged while they are read, with { contentType: 'audio/wav' }
   * for example. */
  async call(agent, action, input, options) {
    const parts = []
    for await (const { final, output } of this.#run(agent, action, input, options)) {
      if (final && output !== undefined) return output
      if (!final) parts.push(output)
    }
    if (parts.length < 2) return parts[0]
    return parts.every((p) => typeof p === 'string') ? parts.join('') : parts
  }

  /** Calls an action like call, and yields the parts of its output as they arrive. Leaving the loop cancels the call. */
  async * stream(agent, action, input, options) {
    let parts = 0
    for await (const { final, output } of this.#run(agent, action, input, options)) {
      if (output !== undefined && !(final && parts++)) yield output
    }
  }

  /** Starts an action with an input like that of call, and resolves with its Task, which continues without this program. */
  async start(agent, action, input, { signal, delegation, contentType } = {}) {
    const headers = { Prefer: 'respond-async, lmos-input', 'Idempotency-Key': randomUUID(), ...presented(delegation) }
    const options = { headers, signal, failed: () => {}, ...body(input, headers, contentType) }
    return new Task(this, agent, action, delegation, await this.json('POST', affordance(agent, 'actions', action), options))
  }

  /** Resolves with a task of the node by its id, from another program for example (lmosd task ls). */
  async task(id, { signal } = {}) {
    const m = await this.json('GET', `/v1/tasks/${encodeURIComponent(id)}`, { signal })
    return new Task(this, m.thing, m.action, undefined, { ...m, href: encodeURIComponent(m.id), 'lmosd:inputRequired': m.inputs })
  }

  /** Yields the output of an action: each part, and at the end the output with final. */
  async * #run(agent, action, input, { timeout = 30, signal, delegation, contentType } = {}) {
    const headers = { Accept: 'text/event-stream', Prefer: `wait=${Math.max(1, Math.ceil(timeout))}`, ...presented(delegation) }
    let failure
    const options = { headers, signal, failed: (e) => { failure = e }, ...body(input, headers, contentType) }
    const r = await this.open('POST', affordance(agent, 'actions', action), options)
    try {
      yield * states(action, r, signal)
    } catch (e) {
      throw failure ?? e
    }
  }

  /** Resolves with the value of a property; without a name, an object of all readable properties. */
  read(agent, name, { signal, delegation } = {}) {
    return this.json('GET', affordance(agent, 'properties', name), { headers: presented(delegation), signal })
  }

  /** Writes a property. */
  write(agent, name, value, { signal, delegation } = {}) {
    return this.json('PUT', affordance(agent, 'properties', name), { body: JSON.stringify(value), headers: presented(delegation), signal })
  }

  /** Yields { name, value, id } of an event, of a property, of all events, or of all properties ('*'), until the loop is left.
   * After a lost connection it reconnects for up to 60 seconds and requests the missed events. */
  watch(agent, { event, property, after, signal, delegation } = {}) {
    const path = property ? affordance(agent, 'properties', property.replace(/^\*$/, '')) : affordance(agent, 'events', event)
    return this.follow(path, { after, signal, delegation })
  }

  /** Yields the events at a path, and reconnects. */
  async * follow(path, { after = '', signal, delegation } = {}) {
    for (let pause = FIRST_PAUSE, seen; ; pause = Math.min(MAX_PAUSE, 2 * pause)) {
      let opened
      try {
        const headers = { Accept: 'text/event-stream', ...presented(delegation), ...(after && { 'Last-Event-ID': after }) }
        const r = await this.open('GET', path, { headers, signal })
        opened = Date.now()
        for await (const e of events(r, signal)) {
          opened = 0 // an event establishes the connection
          after = e.id || after
          yield e
        }
        return // the stream is complete
      } catch (e) {
        if (opened !== undefined && (!seen || Date.now() - opened > LASTING)) { // the connection was established until now
          seen = Date.now()
          pause = FIRST_PAUSE
        }
        // A node that has just restarted may not know the agent yet.
        if (!seen || Date.now() - seen > ABSENCE || !(e.retryable || e.code === 'LMOS-1404')) throw e
      }
      await sleep(pause, undefined, { signal })
    }
  }
}

/** A run of an action that continues without this program, from Mesh.start or Mesh.task. Its state is that of the last method: status
 * is pending, running, input-required, completed, failed or cancelled; output is the result, error a LmosdError or undefined, and
 * inputs are the requests for input, by key: { kind, message, schema }. */
export class Task {
  #mesh
  #delegation

  constructor(mesh, agent, action, delegation, state) {
    this.#mesh = mesh
    this.#delegation = delegation
    Object.assign(this, { agent, action })
    this.#take(state)
  }

  /** Resolves with the output. It rejects with the error of the action; LMOS-1499 if the task was cancelled, LMOS-1428 if it
   * requires input (inputs, answer), and LMOS-1504 after timeout seconds, after which the task continues. */
  async wait({ timeout, signal } = {}) {
    const late = timeout === undefined ? undefined : AbortSignal.timeout(1000 * timeout)
    const end = new AbortController()
    for (const s of [late, signal]) {
      if (s?.aborted) end.abort(s.reason)
      s?.addEventListener('abort', () => end.abort(s.reason), { signal: end.signal })
    }
    try {
      for await (const { value } of this.#mesh.follow(this.#path, { signal: end.signal, delegation: this.#delegation })) {
        this.#take(value)
        if (this.error) throw this.error
        if (this.status === 'cancelled') throw fault(1499, `${this.action} was cancelled`)
        if (this.status === 'input-required') {
          const words = Object.entries(this.inputs).map(([key, i]) => i.message || key).join('; ')
          throw fault(1428, `${this.action} requires input: ${words}`, 'answer it: Task.answer')
        }
        if (this.status === 'completed') return this.output
      }
    } catch (e) {
      if (late?.aborted && !signal?.aborted) throw fault(1504, `${this.action} did not end in ${timeout} s`, 'the task continues')
      throw e
    } finally {
      end.abort() // removes the listeners
    }
    throw fault(3002, `${this.action} ended without a result`, 'check the node: lmosd status')
  }

  /** Reads the state, and resolves with the status. */
  async refresh() {
    this.#take(await this.#send('GET'))
    return this.status
  }

  /** Provides the input that the task requires. If there are several requests, it is an object with the content of each, by key. */
  async answer(content = {}) {
    const keys = this.#keys
    const answers = keys.map((key) => [key, { action: 'accept', content: keys.length === 1 ? content : content[key] }])
    await this.#provide(answers)
  }

  /** Declines to provide the input that the task requires; the action decides how to continue. */
  async decline() { await this.#provide(this.#keys.map((key) => [key, { action: 'decline' }])) }

  /** Cancels the run. */
  async cancel() {
    await this.#send('DELETE')
    this.status = 'cancelled'
  }

  get #keys() { return Object.keys(this.inputs).length ? Object.keys(this.inputs) : ['answer'] }

  async #provide(answers) {
    await this.#send('POST', JSON.stringify(Object.fromEntries(answers)))
    Object.assign(this, { status: 'running', inputs: {} })
  }

  get #path() { return `${affordance(this.agent, 'actions', this.action)}/${encodeURIComponent(this.id)}` }

  #send(method, body) { return this.#mesh.json(method, this.#path, { body, headers: presented(this.#delegation) }) }

  #take({ href = '', status, output, error, 'lmosd:inputRequired': inputs = {} }) {
    this.id = decodeURIComponent(href.slice(href.lastIndexOf('/') + 1)) || this.id
    const asks = Object.keys(inputs).length > 0
    Object.assign(this, { status: asks ? 'input-required' : status, output, inputs, error: status === 'failed' ? fromProblem(error) : undefined })
  }
}

/** Yields the output in the states of a call: each part, and at the end the output with final. */
async function * states(action, r, signal) {
  for await (const { value: { status, output, error } } of events(r, signal)) {
    if (status === 'failed') throw fromProblem(error)
    if (status === 'cancelled') throw fault(1499, `${action} was cancelled`)
    if (status === 'completed' || output !== undefined) yield { final: status === 'completed', output }
    if (status === 'completed') return
  }
  throw fault(3002, `${action} ended without a result`, 'check the node: lmosd status')
}

/** Whether an input is sent as bytes, not as JSON. */
function isStream(input) {
  return input instanceof Uint8Array || Boolean(input?.[Symbol.asyncIterator]) ||
    Boolean(input?.[Symbol.iterator]) && typeof input.next === 'function'
}

/** The options of open for the input of an action. A stream sets its headers. */
function body(input, headers, contentType = 'application/octet-stream') {
  if (!isStream(input)) return input === undefined ? {} : { body: JSON.stringify(input) }
  Object.assign(headers, { 'Content-Type': contentType, 'Transfer-Encoding': 'chunked' }) // also for an empty input
  return { source: input }
}

function affordance(agent, kind, name) {
  return `/things/${encodeURIComponent(agent)}/${kind}${name ? '/' + encodeURIComponent(name) : ''}`
}

/** The header of a request by a delegation; a token that was read from a file may have a line end. */
const presented = (delegation) => delegation ? { 'Lmos-Capability': delegation.trim() } : {}

/** Yields the server-sent events of a response: { name, id, value }. An event with a problem is thrown. */
async function * events(response, signal) {
  let rest = ''
  let e = { data: [] }
  response.setEncoding('utf8')
  const parts = response[Symbol.asyncIterator]()
  try {
    for (;;) {
      const { done, value: part } = await parts.next().catch((cause) => { throw signal?.aborted ? signal.reason : lost(cause) })
      if (done) return
      rest += part
      if (!part.includes('\n')) continue
      const lines = rest.split('\n')
      rest = lines.pop()
      for (const line of lines) {
        const [, field, text] = /^([^:]*):? ?(.*?)\r?$/.exec(line)
        if (field === 'data') e.data.push(text)
        else if (field !== '') e[field] = text
        else if (line.length < 2) { // the end of an event, and not a comment
          const { event: name = '', id = '', data } = e
          e = { data: [] }
          if (data.length === 0) continue
          const value = JSON.parse(data.join('\n'))
          if (name === 'lmosd:problem') throw fromProblem(value)
          yield { name, id, value }
        }
      }
    }
  } finally {
    response.destroy()
  }
}

/** The methods of Mesh, through the node of this machine. */
export const find = (...args) => new Mesh().find(...args)
export const findAll = (...args) => new Mesh().findAll(...args)
export const start = (...args) => new Mesh().start(...args)
export const task = (...args) => new Mesh().task(...args)
export const call = (...args) => new Mesh().call(...args)
export const stream = (...args) => new Mesh().stream(...args)
export const read = (...args) => new Mesh().read(...args)
export const write = (...args) => new Mesh().write(...args)
export const watch = (...args) => new Mesh().watch(...args)

// --- agent

/** Returns an agent with this name: see Agent. */
export const agent = (name, about) => new Agent(name, about)

/**
 * A Caller is the caller of an agent, as the node has verified it. The id identifies the caller over several requests: 'local…' on this machine,
 * else the DID of a node, with #name for a consumer behind that node, which only that node vouches for. Via is the proof: peer, socket, token,
 * loopback, process or unproven. Organization is the DID of the organization that a credential proves, and roles are the roles there, or those of
 * an access token of the agent's node. LentBy is the id of the delegator whose right a call by a delegation uses.
 * @typedef {{ id: string, did?: string, node?: string, name?: string, via: string, organization?: string, roles: string[], lentBy?: string }} Caller
 */

/** An agent. The methods that add affordances return the agent, so that calls can be chained. Only the name is required. Without
 * an id, the node creates one. Capabilities are ids for search. At most limit requests run at once. After ping seconds without a
 * message, the agent pings the node. Ready is called after each registration, and signal stops the agent. */
export class Agent {
  #actions = new Map()
  #reads = new Map()
  #writes = new Map()
  #states = new Map()
  #running = new Map() // by message id: the AbortController
  #asked = new Map() // by the id of a call that waits for input: the function for the input
  #streams = new Map() // by number: the request stream
  #listening = new Map() // by type and name: the request
  #stopping = new AbortController()
  #quiet // ends the wait of stop for running requests
  #socket
  #known = false

  constructor(name, about = {}) {
    const { description, capabilities = [], id, version, tool = false } = about
    const { limit = 256, ping = 20, node, token, ready, signal } = about
    if (!name) throw fault(2011, 'the agent has no name', "agent('weather')")
    this.about = {
      title: name, '@type': tool ? 'lmos:Tool' : 'lmos:Agent',
      ...(id && { id }), ...(description && { description }), ...(version && { version: { instance: version } }),
      ...(capabilities.length && { 'lmos:capabilities': capabilities.map((c) => typeof c === 'string' ? { id: c, name: c } : c) })
    }
    this.id = '' // from the node, once the agent is registered
    Object.assign(this, { limit, ping, node, token, ready })
    if (signal?.aborted) this.#stopping.abort()
    signal?.addEventListener('abort', () => this.stop(), { once: true })
  }

  #put(kind, name, about) {
    const all = this.about[kind] ??= {}
    if (!name || name in all) throw fault(2011, `the name "${name}" is empty or used twice in ${kind}`, 'use a different name for each')
    all[name] = about
    return this
  }

  /** Adds an action. Input is a type (see schema), undefined for no input, or 'chunks' for a request stream (see Chunks). For an object,
   * a missing input is {}.
   *
   * The function f(input, signal, ask, call) returns the output or a promise of it; a generator sends a response stream. Signal is
   * an AbortSignal of the caller's cancellation. await ask('Which town?', { town: 'string' }) requests input from the caller: an
   * object, or null if the caller declines. call.caller is a Caller and call.deadline a Date; both may be undefined.
   *
   * About may have the type of the output; safe; idempotent; synchronous: false for an action that takes long and continues when
   * the caller disconnects; requiresInput: true for one that calls ask; and members of the description (TD 1.1 §5.3.1.4). */
  action(name, input, f, { output, requiresInput, ...about } = {}) {
    const chunked = input === 'chunks'
    const types = { ...(input && !chunked && { input: schema(input) }), ...(output && { output: schema(output) }) }
    this.#put('actions', name, { synchronous: true, ...types, ...(requiresInput && { 'lmosd:requiresInput': true }), ...about })
    this.#actions.set(name, Object.assign((...args) => f(...args), { chunked, members: types.input?.type === 'object' }))
    return this
  }

  /** Adds a property of two functions, read(call) and write(value, call); without write it is read-only. Call is as for an action. */
  property(name, type, read, write, about) {
    this.#put('properties', name, { ...schema(type), ...(!write && { readOnly: true }), ...about })
    this.#reads.set(name, read)
    if (write) this.#writes.set(name, write)
    return this
  }

  /** Adds a property whose value the library stores: consumers read, write and observe it; set(name, value) and get(name) access it
   * here. About may have members of the description, and readOnly. */
  state(name, type, value, about) {
    this.#put('properties', name, { ...schema(type), observable: true, ...about })
    this.#states.set(name, value)
    this.#reads.set(name, () => this.get(name))
    if (!about?.readOnly) this.#writes.set(name, (v) => this.set(name, v))
    return this
  }

  get(name) { return this.#states.get(name) }

  set(name, value) {
    if (!this.#states.has(name)) throw fault(1405, `the agent has no state "${name}"`)
    this.#states.set(name, value)
    this.#notify('propertyReading', name, value)
  }

  /** Adds an event; emit(name, value) sends it to all subscribers. */
  event(name, type, about) { return this.#put('events', name, { ...(type && { data: schema(type) }), ...about }) }

  emit(name, value) {
    if (!this.about.events?.[name]) throw fault(1405, `the agent has no event "${name}"`)
    this.#notify('event', name, value)
  }

  /** Serves until stop is called, or the process receives SIGINT or SIGTERM, which also ends the process. It rejects if the first
   * connection to the node fails: with NotRunning, or the error of the node; if that ends the program, one line is printed. After a lost connection it reconnects, with pauses of up to 5 seconds. */
  async run() {
    const end = (signal) => this.stop().finally(() => process.kill(process.pid, signal))
    const handled = ['SIGINT', 'SIGTERM'].filter((n) => process.listenerCount(n) === 0)
    for (const n of handled) process.once(n, end)
    try {
      await this.#keep()
    } catch (e) {
      if (e instanceof LmosdError) oneLine(e)
      throw e
    } finally {
      for (const n of handled) process.off(n, end)
    }
  }

  /** Serves like run, and resolves with the agent's id when it is registered. */
  start() {
    return new Promise((resolve, reject) => {
      const ready = this.ready
      this.ready = (id) => { resolve(id); ready?.(id) }
      this.run().then(() => resolve(this.id), (e) => { reject(e); if (this.id) console.error('agent stopped:', e) })
    })
  }

  /** Refuses new requests, waits at most wait milliseconds for running ones, unregisters the agent and ends run. */
  async stop({ wait = 8000 } = {}) {
    this.#stopping.abort()
    const s = this.#socket
    if (!s) return
    if (this.#running.size) await Promise.race([new Promise((resolve) => { this.#quiet = resolve }), sleep(wait, undefined, { ref: false })])
    if (this.#known) s.send({ messageType: 'unregisterThing', messageId: randomUUID(), thingId: this.id })
    s.leave()
    // The node answers when the agent is unregistered.
    await Promise.race([s.closed.catch(() => {}), sleep(1000, undefined, { ref: false })])
    s.socket.destroy()
  }

  async #keep() {
    const { signal } = this.#stopping
    for (let pause = FIRST_PAUSE; !signal.aborted;) {
      try {
        await this.#serve()
      } catch (e) {
        if (signal.aborted) return
        if (!this.id || !e.retryable) throw e
      }
      pause = this.#known ? FIRST_PAUSE : Math.min(MAX_PAUSE, 2 * pause)
      this.#known = false
      await sleep(pause * (0.5 + Math.random()), undefined, { signal }).catch(() => {}) // stop ends it
    }
  }

  /** Serves over one connection until it ends. */
  async #serve() {
    const s = await WebSocket.dial(new Mesh(this.node, this.token).at, this.ping, (m) => this.#take(s, m))
    this.#socket = s
    if (this.#stopping.signal.aborted) s.socket.destroy()
    s.send({ messageType: 'registerThing', messageId: 'register', streams: true, data: this.about })
    try {
      await s.closed
    } finally {
      this.#socket = undefined
      this.#listening.clear()
      for (const chunks of this.#streams.values()) chunks.end(lost())
      this.#streams.clear()
      for (const abort of this.#running.values()) abort.abort()
      this.#quiet?.() // the running requests have no caller now
    }
  }

  /** Handles a message of the node. */
  #take(s, m) {
    if (Buffer.isBuffer(m)) { // of a request stream; without one it is ignored
      if (m.length >= 5) this.#streams.get(m.readUInt32BE(1))?.take(m[0], m.subarray(5))
      return
    }
    const kind = m.messageType
    const name = m.action ?? m.event ?? m.name
    if (kind === 'thingRegistered') {
      this.#known = true
      this.id = m.thingId
      this.ready?.(this.id)
    } else if (kind === 'error' && m.correlationId === 'register') {
      s.socket.destroy(fromProblem(m))
    } else if (kind === 'error' || kind === 'acknowledgement') {
      // the response to unregisterThing
    } else if (LISTEN[kind]) {
      this.#listening.set(`${LISTEN[kind]} ${name}`, m) // one for each affordance: the node distributes to its subscribers
      s.send(reply(m, 'acknowledgement', { message: kind }))
    } else if (LEAVE[kind]) {
      this.#listening.delete(`${LEAVE[kind]} ${name}`)
      s.send(reply(m, 'acknowledgement', { message: kind }))
    } else if (kind === 'cancelAction') {
      this.#running.get(m.correlationId)?.abort()
      s.send(reply(m, 'actionStatus', { action: name, status: 'failed', state: 'cancelled' }))
    } else if (kind === 'continueAction') {
      const answered = this.#asked.get(m.actionId ?? m.actionID)
      if (!answered) return s.send(failure(m, fault(1410, 'no call waits for this input', 'it may have ended already')))
      answered(m.input?.answer)
      s.send(reply(m, 'acknowledgement', { message: kind }))
    } else if (this.#stopping.signal.aborted) {
      s.send(failure(m, fault(3030, 'the agent is shutting down', 'try again later, or at another host')))
    } else if (this.#running.size >= this.limit) {
      s.send(failure(m, fault(1529, `the agent runs ${this.limit} requests already`, 'try again later')))
    } else {
      const abort = new AbortController()
      this.#running.set(m.messageId, abort)
      if (m.stream) {
        m.chunks = new Chunks(m.contentType, undefined, (kind, body) => s.packet(m.stream, kind, body))
        this.#streams.set(m.stream, m.chunks)
        abort.signal.addEventListener('abort', () => m.chunks.end(fault(1499, 'the caller has cancelled the request')))
      }
      this.#answer(s, m, kind, name, abort.signal).catch((e) => {
        if (!(e instanceof LmosdError) && !abort.signal.aborted) console.error(kind, name, e) // the agent's own code
        s.send(failure(m, e))
      }).finally(() => {
        this.#running.delete(m.messageId)
        if (this.#running.size === 0) this.#quiet?.()
        if (this.#streams.get(m.stream) === m.chunks) this.#streams.delete(m.stream)
        m.chunks?.end(fault(1499, 'the call has ended'))
      })
    }
  }

  /** Requests input from the caller of an action. The id is unguessable: it authorizes the answer. */
  async #ask(s, m, name, signal, message, type) {
    const actionId = randomUUID()
    const input = { kind: 'form', message, schema: schema(type) }
    try {
      const answer = await new Promise((resolve, reject) => {
        if (signal.aborted) reject(fault(1499, 'the caller has cancelled the request'))
        signal.addEventListener('abort', () => reject(fault(1499, 'the caller has cancelled the request')))
        this.#asked.set(actionId, resolve)
        const waiting = { status: 'pending', state: 'input-required', actionId, output: { answer: input } }
        s.send(reply(m, 'actionStatus', { action: name, ...waiting }))
      })
      return answer?.action === 'accept' ? answer.content ?? {} : null
    } finally {
      this.#asked.delete(actionId)
    }
  }

  /** Sends a value to the node, if it has subscribed. */
  #notify(kind, name, value) {
    const m = this.#listening.get(`${kind} ${name}`)
    const which = kind === 'event' ? 'event' : 'name'
    if (m) this.#socket?.send(reply(m, kind, { [which]: name, data: value ?? null, timestamp: now() }))
  }

  async #answer(s, m, kind, name, signal) {
    const call = { caller: m.caller && { roles: [], ...m.caller }, deadline: m.timeLeft && new Date(Date.now() + m.timeLeft) }
    if (kind === 'invokeAction' && this.#actions.has(name)) {
      const status = (status, output) => s.send(reply(m, 'actionStatus', { action: name, status, ...put(output) }))
      const f = this.#actions.get(name)
      if (f.chunked) m.chunks ??= whole(m)
      else if (m.chunks) throw fault(1406, `${name} does not accept a request stream`, 'send the data as one input')
      const input = m.chunks ?? m.input ?? (f.members ? {} : undefined)
      let output = await f(input, signal, (message, type) => this.#ask(s, m, name, signal, message, type), call)
      if (output?.[Symbol.asyncIterator] || output?.[Symbol.iterator] && typeof output.next === 'function') {
        for await (const part of output) {
          if (signal.aborted) return
          status('running', part)
        }
        output = undefined
      }
      if (!signal.aborted) status('completed', output)
    } else if (kind === 'readProperty' && this.#reads.has(name)) {
      const value = await this.#reads.get(name)(call)
      s.send(reply(m, 'propertyReading', { name, data: value ?? null, timestamp: now() }))
    } else if (kind === 'writeProperty' && this.#writes.has(name)) {
      await this.#writes.get(name)(m.data, call)
      s.send(reply(m, 'acknowledgement', { message: kind }))
    } else {
      throw fault(1406, `${kind} of "${name}" is not supported`)
    }
  }
}

/** A request stream: for await (const chunk of audio). It is read once. A chunk is a Buffer of at most 64 KiB; an input that is not
 * a stream is one chunk. The caller is paused while the chunks are not read; leaving the loop stops the request stream; a stream
 * that breaks off throws. */
class Chunks {
  #queue = []
  #used = 0
  #owed = WINDOW // credit that is not sent yet
  #credit = 0 // bytes that the node may send
  #over
  #error
  #send
  #wake = () => {}

  constructor(contentType = 'application/octet-stream', whole, send) {
    this.contentType = contentType
    this.#over = send === undefined
    this.#send = send
    if (whole?.length) this.#queue.push(whole)
  }

  get #ended() { return this.#over || this.#error }

  [Symbol.asyncIterator]() { return this }

  async next() {
    for (;;) {
      this.#owed += this.#used
      this.#used = 0
      if (this.#owed >= WINDOW / 2 && !this.#ended) {
        const grant = Buffer.alloc(4)
        grant.writeUInt32BE(this.#owed)
        this.#credit += this.#owed
        this.#owed = 0
        this.#send(CREDIT, grant)
      }
      const value = this.#queue.shift()
      if (value) {
        this.#used = 5 + value.length
        return { value, done: false }
      }
      if (this.#error) throw this.#error
      if (this.#over) return { value: undefined, done: true }
      await new Promise((resolve) => { this.#wake = resolve })
    }
  }

  /** Stops the request stream. Leaving the loop calls it. */
  async return() {
    const more = !this.#ended
    this.end(fault(1499, 'the stream was closed'))
    if (more) this.#send(STOP, Buffer.alloc(0))
    return { value: undefined, done: true }
  }

  /** Handles a frame from the node. */
  take(kind, body) {
    if (this.#ended) return
    if (kind === CHUNK && body.length > 0 && body.length <= MAX_CHUNK && this.#credit > 0) {
      this.#credit -= 5 + body.length
      this.#queue.push(body)
      this.#wake()
    } else if (kind === END) {
      this.#over = true
      this.#wake()
    } else if (kind === ABORT) {
      this.end(fault(1499, `the caller ended the request stream early: ${body}`))
    } else if (kind === CHUNK) {
      this.#send(STOP, Buffer.from('the chunks exceed the credit'))
      this.end(fault(1400, 'the chunks of the request stream exceed the credit'))
    }
  }

  /** Ends the stream with an error, unless it has ended. */
  end(error) {
    if (!this.#ended) {
      this.#error = error
      this.#queue = []
    }
    this.#wake()
  }
}

/** Returns the input of m, which is not a stream, as Chunks. */
function whole({ input, contentType, base64 }) {
  if (base64) return new Chunks(contentType, Buffer.from(input, 'base64'))
  if (input === undefined || input === null) return new Chunks(contentType ?? 'application/json')
  const json = /[/+]json\s*(;|$)/.test(contentType ?? 'application/json')
  return new Chunks(contentType ?? 'application/json', Buffer.from(json ? JSON.stringify(input) : input))
}

/** Returns the members of an output. Bytes are in base64. */
function put(output) {
  if (!(output instanceof Uint8Array)) return { output }
  const { buffer, byteOffset, byteLength } = output
  const text = Buffer.from(buffer, byteOffset, byteLength).toString('base64')
  return { output: text, base64: true, contentType: 'application/octet-stream' }
}

const LISTEN = { observeProperty: 'propertyReading', subscribeEvent: 'event' } // the messages of each kind of subscription
const LEAVE = { unobserveProperty: 'propertyReading', unsubscribeEvent: 'event' }

const now = () => new Date().toISOString()

function reply(m, messageType, members) {
  return { messageType, thingId: m.thingId, messageId: randomUUID(), correlationId: m.correlationId ?? m.messageId, ...members }
}

function failure(m, e) {
  const base = 'https://eclipse.dev/lmos/protocol/v1/errors'
  const { code = 'LMOS-1502', hint } = e instanceof LmosdError ? e : { hint: "see the agent's log" }
  const detail = String(e?.message || e).slice(0, 4096)
  return reply(m, 'error', {
    type: `${base}#internal-server-error`, title: 'Internal Server Error', status: '500', detail,
    instance: `${base}/${randomUUID()}`, code, hint
  })
}

/** Returns the data schema (TD 1.1 §5.3.2) of a type: 'string', 'integer', 'number', 'boolean', 'object', 'array', 'null' or 'any';
 * ['string'], an array of strings; or an object of types by member, { question: 'string', days: 'integer?' }, where ? marks an
 * optional member. An object with type, oneOf, enum or const is a schema already. */
function schema(type) {
  if (typeof type === 'string') return type === 'any' ? {} : { type }
  if (Array.isArray(type)) return { type: 'array', items: schema(type[0]) }
  if (typeof type.type === 'string' || type.oneOf || type.enum || 'const' in type) return type
  const optional = (t) => typeof t === 'string' && t.endsWith('?')
  const all = Object.entries(type)
  const required = all.filter(([, t]) => !optional(t)).map(([n]) => n)
  const properties = Object.fromEntries(all.map(([n, t]) => [n, schema(optional(t) ? t.slice(0, -1) : t)]))
  return { type: 'object', properties, ...(required.length && { required }) }
}

// --- WebSocket (RFC 6455), client side

/** A connection with JSON messages and binary frames of request streams. Its promise closed resolves when the node has closed it, and
 * rejects when it is lost. */
class WebSocket {
  /** Connects to a node; take is called with each message: a JSON value, or a Buffer. */
  static dial(at, ping, take) {
    return new Promise((resolve, reject) => {
      const key = randomBytes(16).toString('base64')
      const headers = {
        Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Version': 13, 'Sec-WebSocket-Key': key,
        'Sec-WebSocket-Protocol': 'lmosprotocol'
      }
      const r = request(at, { path: '/ws', timeout: 10_000, headers })
      r.on('timeout', () => r.destroy(new Error('timeout')))
      r.on('error', (e) => reject(unreachable(at, e)))
      r.on('response', (response) => refused(at, response).then(reject))
      r.on('upgrade', (response, socket, head) => {
        const want = createHash('sha1').update(key + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64')
        if (response.headers['sec-websocket-accept'] === want) return resolve(new WebSocket(socket, head, ping, take))
        socket.destroy()
        reject(fault(3002, `the server at ${at.node} is not a node`, 'check the node: lmosd status'))
      })
      r.end()
    })
  }

  constructor(socket, head, ping, take) {
    Object.assign(this, { socket, take, buffer: head, text: false, parts: [], size: 0, pinged: false, left: false, over: false })
    socket.setNoDelay(true)
    socket.setTimeout(1000 * ping)
    socket.on('timeout', () => {
      if (this.pinged) return socket.destroy(new Error('the node does not answer'))
      this.pinged = true
      this.frame(9, Buffer.alloc(0))
    })
    this.closed = new Promise((resolve, reject) => {
      let cause
      socket.on('error', (e) => { cause = e })
      socket.on('close', () => this.over ? resolve() : reject(cause instanceof LmosdError ? cause : lost(cause)))
    })
    this.closed.catch(() => {}) // a caller that awaits it gets the error
    socket.on('data', (part) => {
      try {
        this.#read(part)
      } catch (e) {
        socket.destroy(e)
      }
    })
  }

  send(message) {
    const data = Buffer.from(JSON.stringify(message))
    if (data.length > MAX_MESSAGE) {
      throw fault(1413, `the message has ${data.length} bytes, the limit is ${MAX_MESSAGE}`, 'send it in parts')
    }
    this.frame(1, data)
  }

  /** Sends a frame of a request stream. */
  packet(number, kind, body) {
    const head = Buffer.alloc(5, kind)
    head.writeUInt32BE(number, 1)
    this.frame(2, Buffer.concat([head, body]))
  }

  /** Sends a close frame (1000); the node then closes the connection. */
  leave() { this.frame(8, Buffer.from([0x03, 0xe8])) }

  frame(op, data) {
    if (!this.socket.writable || this.left) return // the connection is closing
    this.left = op === 8
    if (this.socket.writableLength > 4 * MAX_MESSAGE) return this.socket.destroy(new Error('the node reads too slowly'))
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

  #read(part) {
    this.pinged = false
    this.buffer = this.buffer.length ? Buffer.concat([this.buffer, part]) : part
    for (;;) {
      const b = this.buffer
      if (b.length < 2) return
      const short = b[1] & 0x7f
      const head = short < 126 ? 2 : short === 126 ? 4 : 10
      if (b.length < head) return
      const size = short < 126 ? short : short === 126 ? b.readUInt16BE(2) : Number(b.readBigUInt64BE(2))
      if (size > MAX_MESSAGE) throw new Error(`the node sent more than ${MAX_MESSAGE} bytes`)
      if (b.length < head + size) return
      this.buffer = b.subarray(head + size)
      this.#got(b[0] & 15, b[0] >= 0x80, b.subarray(head, head + size))
    }
  }

  #got(op, final, data) {
    if (op === 8) {
      this.over = data.length < 2 || data.readUInt16BE(0) === 1000
      this.frame(8, data.subarray(0, 2))
      if (this.over) this.socket.end()
      else this.socket.destroy(new Error(data.subarray(2).toString()))
    } else if (op === 9) {
      this.frame(10, data)
    } else if (op < 3) {
      this.text ||= op === 1
      this.parts.push(data)
      this.size += data.length
      if (this.size > MAX_MESSAGE) throw new Error(`the node sent more than ${MAX_MESSAGE} bytes`)
      if (!final) return
      const { text, parts } = this
      Object.assign(this, { text: false, parts: [], size: 0 })
      const message = Buffer.concat(parts)
      this.take(text ? JSON.parse(message) : message)
    }
  }
}
