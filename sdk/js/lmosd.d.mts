// Types of lmosd.mjs, for TypeScript 5 or later. The comments are in lmosd.mjs.

/** Buffer with the types of Node, else Uint8Array. */
type Bytes = typeof globalThis extends { Buffer: { prototype: infer B } } ? B : Uint8Array
type Awaitable<T> = T | Promise<T>
type Parts<T> = Generator<T, unknown, any> | AsyncGenerator<T, unknown, any> | AsyncIterableIterator<T>

interface Named {
  string: string
  integer: number
  number: number
  boolean: boolean
  object: Record<string, any>
  array: any[]
  null: null
  any: any
}

/** A data schema (TD 1.1 §5.3.2). */
export type Schema = { readonly type: keyof Named, readonly [member: string]: unknown }
  | { readonly oneOf: readonly unknown[], readonly [member: string]: unknown }
  | { readonly enum: readonly unknown[], readonly [member: string]: unknown }
  | { readonly const: unknown, readonly [member: string]: unknown }

/** The type of an input, an output or a value: 'string', 'integer', 'number', 'boolean', 'object', 'array', 'null' or 'any'; ['string'],
 * an array of strings; an object of types by member, { question: 'string', days: 'integer?' }, where ? marks an optional member; or a
 * schema. */
export type Type = keyof Named | readonly [Type] | Schema | { readonly [member: string]: Type | `${keyof Named}?` }

type Optional<T> = { [K in keyof T]: T[K] extends `${string}?` ? K : never }[keyof T]
type Members<T> = { -readonly [K in Exclude<keyof T, Optional<T>>]: Value<T[K]> }
  & { -readonly [K in Optional<T>]?: T[K] extends `${infer N}?` ? Value<N> : never }

/** The values of a type: Value<{ city: 'string' }> is { city: string }. */
export type Value<T> = T extends keyof Named ? Named[T]
  : T extends readonly [infer E] ? Value<E>[]
  : T extends { readonly enum: readonly (infer E)[] } ? E
  : T extends { readonly const: infer C } ? C
  : T extends { readonly oneOf: unknown } ? any
  : T extends { readonly type: infer N extends keyof Named } ? Named[N]
  : T extends object ? { [K in keyof Members<T>]: Members<T>[K] } : any

/** The input of an action: a request stream for 'chunks'. */
type Input<I> = I extends 'chunks' ? Chunks : I extends Type ? Value<I> : undefined
type Output<O> = O extends Type ? Awaitable<Value<O>> | Parts<Value<O>> : any

/** A step that can help: { kind: 'show', args: ['weather'] }. */
export interface Step { kind: string, args?: string[] }

export interface Problem {
  title?: string
  detail?: string
  code?: string
  hint?: string
  validationErrors?: { pointer?: string, reason: string }[]
  [member: string]: any
}

/** An error of the node or of an agent. An agent throws it to choose the text. */
export class LmosdError extends Error {
  constructor (message: string, about?: { code?: string, hint?: string, problem?: Problem, cause?: unknown })
  code: string
  hint: string
  problem: Problem
  next: Step[]
  /** The same request may succeed later. */
  retryable: boolean
}

/** No node answers (LMOS-3001). */
export class NotRunning extends LmosdError {
  constructor (message: string, cause?: unknown)
}

/** The node of this machine, and its token. */
export function local (): { node: string, token: string }

export interface Options {
  /** Ends the request. */
  signal?: AbortSignal | undefined
  /** The token of a delegation (lmosd delegate). */
  delegation?: string | undefined
}

export interface StartOptions extends Options {
  /** The media type of an input of bytes. */
  contentType?: string | undefined
}

export interface CallOptions extends StartOptions {
  /** Seconds, 30 by default, 600 at most. */
  timeout?: number | undefined
}

export interface WatchOptions extends Options {
  event?: string | undefined
  /** '*': all properties. */
  property?: string | undefined
  /** The id of the last event; later ones are sent, as far as the node of the agent stores them. */
  after?: string | undefined
}

export interface Found { id: string, name: string, [member: string]: any }
export type Query = Record<string, string>
export interface Watched<T = any> { name: string, id: string, value: T }

/** A client of one node. */
export class Mesh {
  constructor (node?: string, token?: string)
  find (text?: string, query?: Query): Promise<Found[]>
  findAll (text?: string, query?: Query): AsyncGenerator<Found, void, void>
  call<T = any> (agent: string, action: string, input?: unknown, options?: CallOptions): Promise<T>
  stream<T = any> (agent: string, action: string, input?: unknown, options?: CallOptions): AsyncGenerator<T, void, void>
  start (agent: string, action: string, input?: unknown, options?: StartOptions): Promise<Task>
  task (id: string, options?: { signal?: AbortSignal }): Promise<Task>
  read<T = any> (agent: string, name?: string, options?: Options): Promise<T>
  write (agent: string, name: string, value: unknown, options?: Options): Promise<void>
  watch<T = any> (agent: string, options?: WatchOptions): AsyncGenerator<Watched<T>, void, void>
}

export interface InputRequest { kind: 'form' | 'url' | 'message' | 'model' | 'roots', message?: string, schema?: any, url?: string, params?: any }

/** A run of an action that continues without this program. */
export class Task {
  private constructor ()
  readonly id: string
  readonly agent: string
  readonly action: string
  readonly status: 'pending' | 'running' | 'input-required' | 'completed' | 'failed' | 'cancelled' | 'unknown'
  readonly output: any
  readonly error: LmosdError | undefined
  readonly inputs: Record<string, InputRequest>
  wait<T = any> (options?: { timeout?: number, signal?: AbortSignal }): Promise<T>
  refresh (): Promise<Task['status']>
  answer (content?: unknown): Promise<void>
  decline (): Promise<void>
  cancel (): Promise<void>
}

export const find: Mesh['find']
export const findAll: Mesh['findAll']
export const call: Mesh['call']
export const stream: Mesh['stream']
export const start: Mesh['start']
export const task: Mesh['task']
export const read: Mesh['read']
export const write: Mesh['write']
export const watch: Mesh['watch']

/** The caller of an agent, as the node has verified it. */
export interface Caller {
  id: string
  did?: string
  node?: string
  name?: string
  via: string
  organization?: string
  roles: string[]
  lentBy?: string
}

/** One request to an agent. */
export interface Request { caller?: Caller, deadline?: Date }

/** Requests input from the caller of an action; null if the caller declines. */
export type Ask = <const T extends Type>(message: string, type: T) => Promise<Value<T> | null>

/** A request stream, read once. */
export interface Chunks extends AsyncIterableIterator<Bytes> { contentType: string }

export interface AgentOptions {
  description?: string
  /** Ids, or objects with id, name and further members. */
  capabilities?: readonly (string | { id: string, name?: string, [member: string]: unknown })[]
  id?: string
  version?: string
  /** A tool instead of an agent. */
  tool?: boolean
  /** Requests that run at once, 256 by default. */
  limit?: number
  /** Seconds without a message after which the agent pings the node. */
  ping?: number
  node?: string
  token?: string
  /** Called after each registration. */
  ready?: (id: string) => void
  /** Stops the agent. */
  signal?: AbortSignal
}

export interface ActionOptions<O> {
  output?: O
  safe?: boolean
  idempotent?: boolean
  /** False: it takes long, and continues when the caller disconnects. */
  synchronous?: boolean
  /** It calls ask. */
  requiresInput?: boolean
  description?: string
  [member: string]: unknown
}

/** An agent. The methods that add affordances return it. */
export class Agent {
  constructor (name: string, about?: AgentOptions)
  /** The id from the node, once the agent is registered. */
  id: string
  action<const I extends Type | 'chunks' | undefined, const O extends Type | undefined = undefined> (name: string, input: I,
    f: (input: Input<I>, signal: AbortSignal, ask: Ask, call: Request) => Output<O>, about?: ActionOptions<O>): this
  property<const T extends Type> (name: string, type: T, read: (call: Request) => Awaitable<Value<T>>,
    write?: (value: Value<T>, call: Request) => unknown, about?: Record<string, unknown>): this
  state<const T extends Type> (name: string, type: T, value: Value<T>, about?: Record<string, unknown>): this
  get (name: string): any
  set (name: string, value: unknown): void
  event (name: string, type?: Type, about?: Record<string, unknown>): this
  emit (name: string, value?: unknown): void
  run (): Promise<void>
  start (): Promise<string>
  /** Wait is in milliseconds, 8000 by default. */
  stop (options?: { wait?: number }): Promise<void>
}

/** Returns an agent with this name. */
export function agent (name: string, about?: AgentOptions): Agent
