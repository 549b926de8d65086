// The model of a form: fields and drafts from JSON Schema and from the data schemas of Thing Descriptions. It knows no page, and it
// validates nothing: the node does. A schema comes from an untrusted peer: depth, number of fields, references and texts are bounded, and a
// pattern is never run.

/** ABSENT is the value of what was left out: neither null nor "". */
export const ABSENT = Symbol('absent');

/** maxDepth is the depth below which a field is JSON text. */
export const maxDepth = 8;

// The fields that one form makes at most; the rest is JSON text.
const maxFields = 3000;
// The steps in which the references and allOf of one schema are resolved.
const maxSteps = 64;

/** maxOptions is the number of options that a choice reads of its schema. */
export const maxOptions = 5000;

/** Num is a number in its own digits: a large one would lose some as a number of JavaScript. */
export class Num {
  constructor(text) {
    this.text = text;
  }
}

const numeral = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

const isObject = (v) => typeof v === 'object' && v !== null && !Array.isArray(v);
const own = (o, name) => (isObject(o) && Object.hasOwn(o, name) ? o[name] : undefined);
const list = (v) => (Array.isArray(v) ? v : []);
const text = (v) => (typeof v === 'string' ? v : '');

/** pointer appends a name to a JSON pointer (RFC 6901). */
export function pointer(base, name) {
  return `${base}/${String(name).replaceAll('~', '~0').replaceAll('/', '~1')}`;
}

// lookup follows a local reference; undefined if it is remote or leads nowhere.
function lookup(root, ref) {
  if (ref === '#') return root;
  if (typeof ref !== 'string' || !ref.startsWith('#/')) return undefined;
  let at = root;
  for (const part of ref.slice(2).split('/')) {
    let name = part;
    try {
      name = decodeURIComponent(part);
    } catch {
      // A stray % is itself.
    }
    name = name.replaceAll('~1', '/').replaceAll('~0', '~');
    at = Array.isArray(at) ? at[Number(name)] : own(at, name);
    if (at === undefined) return undefined;
  }
  return at;
}

// merge combines two schemas that both hold. Of keywords that cannot be combined, the second wins.
function merge(a, b) {
  const out = { ...a, ...b };
  if (isObject(a.properties) && isObject(b.properties)) {
    const members = new Map(Object.entries(a.properties));
    for (const [name, schema] of Object.entries(b.properties)) {
      const before = members.get(name);
      members.set(name, isObject(before) && isObject(schema) ? merge(before, schema) : schema);
    }
    out.properties = Object.fromEntries(members); // fromEntries defines, so that "__proto__" is a name like others
  }
  if (Array.isArray(a.required) && Array.isArray(b.required)) out.required = [...a.required, ...b.required];
  if (Array.isArray(a.enum) && Array.isArray(b.enum)) out.enum = a.enum.filter((x) => b.enum.some((y) => JSON.stringify(x) === JSON.stringify(y)));
  for (const name of ['anyOf', 'oneOf']) {
    // Two alternatives that both hold cannot be one choice: the first is one, the node checks the other.
    if (Array.isArray(a[name]) && Array.isArray(b[name])) out[name] = a[name];
  }
  return out;
}

// resolve follows references and combines allOf. It returns null for what it cannot resolve: a remote reference, a loop, too many steps.
function resolve(schema, root) {
  let steps = 0;
  const visit = (s, seen) => {
    if (s === true || s === undefined || s === null) return {};
    if (!isObject(s) || ++steps > maxSteps) return null;
    let out = s;
    if (s.$ref !== undefined) {
      if (seen.includes(s.$ref)) return null;
      const target = visit(lookup(root, s.$ref) ?? false, [...seen, s.$ref]);
      if (!target) return null;
      const { $ref, ...beside } = s;
      out = merge(target, beside);
    }
    if (Array.isArray(out.allOf)) {
      const { allOf, ...beside } = out;
      out = beside;
      for (const part of allOf) {
        const one = visit(part, seen);
        if (!one) return null;
        out = merge(out, one);
      }
    }
    return out;
  };
  return visit(schema, []);
}

const isNull = (s) => isObject(s) && (s.type === 'null' || (Object.hasOwn(s, 'const') && s.const === null) || (Array.isArray(s.enum) && s.enum.length === 1 && s.enum[0] === null));

// fixed returns the only value of a schema as [value], or null.
function fixed(s) {
  if (!isObject(s)) return null;
  if (Object.hasOwn(s, 'const')) return [s.const];
  return Array.isArray(s.enum) && s.enum.length === 1 ? [s.enum[0]] : null;
}

function typeOf(s) {
  if (typeof s.type === 'string') return s.type;
  if (isObject(s.properties) || Array.isArray(s.required) || s.additionalProperties !== undefined) return 'object';
  if (s.items !== undefined || s.prefixItems !== undefined) return 'array';
  if (s.minLength !== undefined || s.maxLength !== undefined || s.format !== undefined || s.contentEncoding !== undefined || s.pattern !== undefined) return 'string';
  if (s.minimum !== undefined || s.maximum !== undefined || s.multipleOf !== undefined) return 'number';
  return '';
}

const label = (v) => (typeof v === 'string' ? v : JSON.stringify(v) ?? '');

// options returns the values and names of a choice, or null if schema is none.
function options(s, root) {
  if (Array.isArray(s.enum)) {
    const names = list(s.enumNames).length ? s.enumNames : list(s['x-enum-varnames']);
    return s.enum.slice(0, maxOptions).map((value, i) => ({ value, label: text(names[i]) || label(value) }));
  }
  const of = list(s.oneOf).length ? s.oneOf : list(s.anyOf);
  if (!of.length || of.length > maxOptions) return null;
  const out = [];
  for (const one of of) {
    const r = one?.$ref === undefined ? one : resolve(one, root);
    const value = fixed(r);
    if (!value) return null;
    out.push({ value: value[0], label: text(r.title) || label(value[0]) });
  }
  return out;
}

/**
 * field describes how a schema is shown.
 * @returns {{kind: string, schema: object, nullable: boolean, options?: {value: any, label: string}[], variants?: object[],
 *   members?: [string, any][], required?: Set<string>, additional?: any, items?: any, tuple?: any[], binary?: boolean, integer?: boolean}}
 *   kind: object, array, tuple, set, string, number, boolean, enum, const, null, union, any or json
 */
export function field(raw, root, depth) {
  let s = raw === false ? null : resolve(raw, root);
  if (!s || depth > maxDepth) return { kind: 'json', schema: s ?? (isObject(raw) ? raw : {}), nullable: false };
  let nullable = false;
  // nullable: one of several types, a nullable of OpenAPI, or an alternative is null.
  if (Array.isArray(s.type)) {
    const types = s.type.filter((x) => x !== 'null');
    nullable = types.length < s.type.length;
    s = { ...s, type: types.length ? types[0] : 'null' };
    if (types.length > 1 && !s.enum && !s.oneOf && !s.anyOf) {
      const { type, title, description, ...rest } = s;
      return { kind: 'union', schema: s, nullable, variants: types.map((x) => ({ ...rest, type: x })) };
    }
  }
  if (s.nullable === true) nullable = true;
  if (Object.hasOwn(s, 'const')) return { kind: 'const', schema: s, nullable: false };
  const choice = options(s, root);
  if (choice) {
    // A null among the values is an option like others, and "not set" is another one.
    if (nullable && !choice.some((o) => o.value === null)) choice.push({ value: null, label: 'null' });
    return { kind: 'enum', schema: s, nullable: false, options: choice };
  }
  for (const name of ['oneOf', 'anyOf']) {
    const of = list(s[name]);
    if (!of.length) continue;
    const rest = of.filter((x) => !isNull(x?.$ref === undefined ? x : resolve(x, root)));
    if (rest.length < of.length) nullable = true;
    const { [name]: left, ...base } = s;
    if (!rest.length) return { kind: 'null', schema: s, nullable: false };
    if (rest.length === 1) {
      const { title, description, ...plain } = base;
      const one = resolve(rest[0], root);
      if (!one) return { kind: 'json', schema: s, nullable };
      const f = field({ ...merge(base, one), ...(title && { title }), ...(description && { description }) }, root, depth);
      if (f.kind !== 'enum' || !nullable) return { ...f, nullable: f.nullable || nullable };
      return f.options.some((o) => o.value === null) ? f : { ...f, options: [...f.options, { value: null, label: 'null' }] };
    }
    const { title, description, default: preset, examples, ...shared } = base;
    return { kind: 'union', schema: s, nullable, variants: rest.slice(0, maxOptions).map((one) => ({ shared, one })) };
  }
  switch (typeOf(s)) {
    case 'object': {
      const members = Object.entries(isObject(s.properties) ? s.properties : {});
      const additional = isObject(s.additionalProperties) ? s.additionalProperties : undefined;
      const required = new Set(list(s.required).filter((x) => typeof x === 'string'));
      for (const name of required) {
        if (members.length < maxFields && !own(s.properties, name) && s.properties?.[name] !== true) members.push([name, {}]);
      }
      if (!members.length && !additional) return { kind: depth === 0 && s.additionalProperties === false ? 'empty' : 'json', schema: s, nullable, object: true };
      // Members that must be there come first; both groups keep their order.
      members.sort((a, b) => Number(required.has(b[0])) - Number(required.has(a[0])));
      return { kind: 'object', schema: s, nullable, members, required, additional };
    }
    case 'array': {
      const tuple = Array.isArray(s.prefixItems) ? s.prefixItems : Array.isArray(s.items) ? s.items : null;
      if (tuple) return tuple.length > 32 ? { kind: 'json', schema: s, nullable } : { kind: 'tuple', schema: s, nullable, tuple };
      const items = s.items === undefined ? {} : s.items;
      const of = s.uniqueItems === true ? resolve(items, root) : null;
      const many = of && options(of, root);
      if (many && many.length <= 50) return { kind: 'set', schema: s, nullable, options: many };
      return { kind: 'array', schema: s, nullable, items };
    }
    case 'string': {
      const media = text(s.contentMediaType);
      const binary = /^base64/i.test(text(s.contentEncoding)) || ['byte', 'binary'].includes(s.format) || (media !== '' && !/^(text\/|application\/(json|.*\+json|xml))/.test(media));
      return { kind: 'string', schema: s, nullable, binary };
    }
    case 'integer':
    case 'number':
      return { kind: 'number', schema: s, nullable, integer: s.type === 'integer' };
    case 'boolean':
      return { kind: 'boolean', schema: s, nullable };
    case 'null':
      return { kind: 'null', schema: s, nullable: false };
    case '':
      return { kind: 'any', schema: s, nullable };
    default:
      return { kind: 'json', schema: s, nullable };
  }
}

/** variantName names one alternative of a union, as a short text; '' if it has no name. */
export function variantName(variant, root) {
  const one = resolve(variant.one ?? variant, root) ?? {};
  if (text(one.title)) return one.title;
  for (const [, s] of Object.entries(isObject(one.properties) ? one.properties : {})) {
    const value = fixed(s);
    if (value && typeof value[0] === 'string') return value[0];
  }
  const value = fixed(one);
  if (value) return label(value[0]);
  if (list(one.required).length && !one.properties) return one.required.filter((x) => typeof x === 'string').slice(0, 4).join(', ');
  const type = typeOf(one);
  if (type === 'object' && isObject(one.properties)) return Object.keys(one.properties).slice(0, 3).join(', ');
  return text(one.description) || type;
}

let serial = 0;

// A Draft is the state of one field: what was typed, not yet a value. Form.make has its members.

/** A Form is a schema with its draft. */
export class Form {
  /**
   * @param {any} schema  undefined: text unless it is JSON
   * @param {any} [value]  fills the form in
   */
  constructor(schema, value = ABSENT) {
    this.root = schema ?? {};
    this.made = 0;
    this.none = schema === undefined;
    this.json = false; // the text is what is sent
    this.strict = false; // a required member that is left out is an error: for what no node checks
    this.text = '';
    this.draft = this.make(this.root, 0, true);
    if (value !== ABSENT) this.fill(this.draft, value);
  }

  /** make returns the draft of a schema. Optional objects, lists and alternatives begin closed: that ends loops of references. */
  make(schema, depth, required) {
    const over = ++this.made > maxFields;
    const f = over ? { kind: 'json', schema: isObject(schema) ? schema : {}, nullable: false } : field(schema, this.root, depth);
    const d = {
      id: ++serial, field: f, schema, depth, required, on: required, isNull: false, raw: false, text: '', index: '',
      items: [], members: new Map(), rows: [], picked: new Set(), inner: null, file: '',
    };
    if (f.kind === 'const') d.on = required;
    if (required) this.open(d);
    if (required && depth > 0 && Object.hasOwn(f.schema, 'default')) this.fill(d, f.schema.default);
    return d;
  }

  /** open makes what a field contains. */
  open(d) {
    const f = d.field;
    d.on = true;
    d.isNull = false;
    if (f.kind === 'tuple' && !d.items.length) {
      d.items = f.tuple.map((s) => this.make(s, d.depth + 1, true));
    } else if (f.kind === 'array' && !d.items.length) {
      const least = Number.isInteger(f.schema.minItems) ? Math.min(f.schema.minItems, 8) : 0;
      for (let i = 0; i < least; i++) this.add(d);
    } else if (f.kind === 'union' && d.index === '') {
      this.choose(d, '0');
    } else if (f.kind === 'enum' && d.required && f.options.length === 1) {
      d.index = '0';
    }
  }

  /** close leaves a field out again. */
  close(d) {
    d.on = d.isNull = d.raw = false;
    d.text = d.index = d.file = '';
    d.items = [];
    d.rows = [];
    d.members.clear();
    d.picked.clear();
    d.inner = null;
  }

  /** member returns the draft of a member of an object; it is made when it is first used. */
  member(d, name) {
    let m = d.members.get(name);
    if (!m) {
      const schema = own(d.field.schema.properties, name);
      m = this.make(schema === undefined ? {} : schema, d.depth + 1, d.field.required.has(name));
      d.members.set(name, m);
    }
    return m;
  }

  /** add appends an item to a list, or a member of any name to an object. */
  add(d, name = '') {
    if (d.field.kind === 'array') d.items.push(this.make(d.field.items, d.depth + 1, true));
    else d.rows.push({ name, draft: this.make(d.field.additional ?? {}, d.depth + 1, true) });
  }

  /** choose selects an alternative by its index; what was filled in stays where the names are the same. */
  choose(d, index) {
    const before = d.inner ? this.value(d.inner, '', []) : ABSENT;
    d.index = index;
    d.inner = null;
    if (index === '') {
      d.on = false;
      return;
    }
    d.on = true;
    const v = d.field.variants[Number(index)];
    d.inner = this.make(this.variant(v), d.depth + 1, true);
    if (before !== ABSENT) this.refill(d.inner, before);
  }

  variant(v) {
    if (v.one === undefined) return v;
    const one = resolve(v.one, this.root);
    return one ? merge(v.shared, one) : v.one;
  }

  refill(d, value) {
    if (!(value instanceof Map) || d.field.kind !== 'object') return;
    for (const [name, v] of value) {
      if (!own(d.field.schema.properties, name)) continue;
      const m = this.member(d, name);
      if (m.field.kind !== 'const') this.fill(m, plain(v));
    }
  }

  /** fill puts a value (of JSON.parse) into a draft. What the fields cannot show is JSON text. */
  fill(d, value) {
    const f = d.field;
    d.raw = false;
    if (value === null && f.nullable) {
      d.on = d.isNull = true;
      return;
    }
    d.isNull = false;
    const raw = () => {
      d.on = d.raw = true;
      d.text = toText(value, 2);
    };
    switch (f.kind) {
      case 'object': {
        if (!isObject(value)) return raw();
        const names = new Set(f.members.map(([name]) => name));
        const rest = Object.keys(value).filter((name) => !names.has(name));
        if (rest.length && !f.additional) return raw();
        d.on = true;
        d.members.clear();
        d.rows = [];
        for (const [name] of f.members) {
          if (Object.hasOwn(value, name)) this.fill(this.member(d, name), value[name]);
          else if (d.field.required.has(name)) this.close(this.member(d, name));
        }
        for (const name of rest) {
          this.add(d, name);
          this.fill(d.rows.at(-1).draft, value[name]);
        }
        return;
      }
      case 'array':
        if (!Array.isArray(value) || value.length > 200) return raw();
        d.on = true;
        d.items = [];
        for (const one of value) {
          this.add(d);
          this.fill(d.items.at(-1), one);
        }
        return;
      case 'tuple':
        if (!Array.isArray(value) || value.length > f.tuple.length) return raw();
        this.open(d);
        value.forEach((one, i) => this.fill(d.items[i], one));
        return;
      case 'set': {
        if (!Array.isArray(value)) return raw();
        const at = value.map((v) => f.options.findIndex((o) => same(o.value, v)));
        if (at.includes(-1)) return raw();
        d.on = true;
        d.picked = new Set(at);
        return;
      }
      case 'string':
        if (typeof value !== 'string' || value === '') return raw();
        d.text = value;
        d.on = true;
        return;
      case 'number':
        if (value instanceof Num) d.text = value.text;
        else if (typeof value === 'number') d.text = JSON.stringify(value);
        else return raw();
        d.on = true;
        return;
      case 'boolean':
        if (typeof value !== 'boolean') return raw();
        d.index = String(value);
        d.on = true;
        return;
      case 'enum': {
        const at = f.options.findIndex((o) => same(o.value, value));
        if (at < 0) return raw();
        d.index = String(at);
        d.on = true;
        return;
      }
      case 'const':
        if (!same(f.schema.const, value)) return raw();
        d.on = true;
        return;
      case 'null':
        if (value !== null) return raw();
        d.on = true;
        return;
      case 'union': {
        const at = f.variants.findIndex((v) => fits(this.variant(v), value, this.root));
        if (at < 0) return raw();
        this.choose(d, String(at));
        this.fill(d.inner, value);
        return;
      }
      case 'any':
        d.on = true;
        d.text = typeof value === 'string' && parse(value) === ABSENT && value !== '' ? value : toText(value, 2);
        return;
      default:
        d.on = true;
        d.text = toText(value, 2);
    }
  }

  /**
   * value returns what a draft stands for, objects as Maps, or ABSENT.
   * @param {{field: string, description: string}[]} errors  receives what cannot be read, by JSON pointer
   */
  value(d, at, errors) {
    if (d.isNull) return null;
    const f = d.field;
    if (d.raw || f.kind === 'json') {
      if (d.text.trim() === '') {
        if (d.depth === 0 && f.object) return new Map();
        return ABSENT;
      }
      const v = parse(d.text);
      if (v === ABSENT) errors.push({ field: at, description: 'json' });
      return v;
    }
    switch (f.kind) {
      case 'empty':
        return new Map();
      case 'object': {
        if (!d.on) return ABSENT;
        const out = new Map();
        for (const [name] of f.members) {
          // A member that was not shown yet is absent, unless it must be there: then it may have a fixed value.
          if (!d.members.has(name) && !f.required.has(name)) continue;
          const v = this.value(this.member(d, name), pointer(at, name), errors);
          if (v !== ABSENT) out.set(name, v);
          else if (this.strict && f.required.has(name)) errors.push({ field: pointer(at, name), description: 'missing' });
        }
        for (const row of d.rows) {
          if (row.name === '') continue;
          const v = this.value(row.draft, pointer(at, row.name), errors);
          if (v !== ABSENT) out.set(row.name, v);
        }
        return out;
      }
      case 'array':
      case 'tuple': {
        if (!d.on) return ABSENT;
        const out = [];
        d.items.forEach((one, i) => {
          const v = this.value(one, pointer(at, i), errors);
          if (v !== ABSENT) out.push(v);
          else if (f.kind === 'array' && one.field.kind === 'string') out.push('');
        });
        return out;
      }
      case 'set':
        if (!d.on && !d.picked.size) return ABSENT;
        return [...d.picked].sort((a, b) => a - b).map((i) => f.options[i].value);
      case 'string':
        return d.text === '' ? ABSENT : d.text;
      case 'number': {
        const typed = d.text.trim();
        if (typed === '') return ABSENT;
        if (numeral.test(typed)) return new Num(typed);
        errors.push({ field: at, description: 'number' });
        return ABSENT;
      }
      case 'boolean':
        return d.index === '' ? ABSENT : d.index === 'true';
      case 'enum':
        return d.index === '' ? ABSENT : f.options[Number(d.index)].value;
      case 'const':
        return d.on ? f.schema.const : ABSENT;
      case 'null':
        return d.on ? null : ABSENT;
      case 'union':
        return d.inner ? this.value(d.inner, at, errors) : ABSENT;
      default: {
        if (d.text === '') return ABSENT;
        const v = parse(d.text);
        return v === ABSENT ? d.text : v;
      }
    }
  }

  /**
   * body returns the JSON text to send.
   * @returns {{text: string|undefined, errors: {field: string, description: string}[]}}  text is undefined without an input
   */
  body() {
    if (this.json) {
      if (this.text.trim() === '') return { text: undefined, errors: [] };
      return parse(this.text) === ABSENT ? { text: undefined, errors: [{ field: '', description: 'json' }] } : { text: this.text, errors: [] };
    }
    const errors = [];
    const v = this.value(this.draft, '', errors);
    return { text: v === ABSENT || errors.length ? undefined : toText(v), errors };
  }

  /** toJSON shows the form as text; false if it has errors. */
  showJSON() {
    const errors = [];
    const v = this.value(this.draft, '', errors);
    this.text = v === ABSENT ? '' : toText(v, 2);
    this.json = true;
  }

  /** showForm fills the form from the text; false if the text is not JSON. */
  showForm() {
    if (this.text.trim() === '') {
      this.made = 0;
      this.draft = this.make(this.root, 0, true);
    } else {
      const v = parse(this.text);
      if (v === ABSENT) return false;
      this.made = 0;
      this.draft = this.make(this.root, 0, true);
      this.fill(this.draft, v);
    }
    this.json = false;
    return true;
  }

  /** place returns the pointer of the field that shows an error of the node: the missing member, the field, or the nearest one around it. */
  place(error) {
    let at = typeof error.field === 'string' ? error.field : '';
    let d = this.draft;
    let found = '';
    const parts = at === '' ? [] : at.split('/').slice(1).map((p) => p.replaceAll('~1', '/').replaceAll('~0', '~'));
    const inner = () => {
      while (d?.field.kind === 'union' && d.inner && !d.raw) d = d.inner;
    };
    inner();
    for (const name of parts) {
      if (!d || d.raw) return found;
      let next = null;
      if (d.field.kind === 'object') next = d.field.members.some(([n]) => n === name) ? this.member(d, name) : d.rows.find((r) => r.name === name)?.draft;
      else if (d.field.kind === 'array' || d.field.kind === 'tuple') next = d.items[Number(name)];
      if (!next) return found;
      d = next;
      found = pointer(found, name);
      inner();
    }
    const missing = /^"?(.+?)"? is missing$/s.exec(text(error.description));
    if (missing && d?.field.kind === 'object' && !d.raw && d.field.members.some(([n]) => n === missing[1])) return pointer(found, missing[1]);
    return found;
  }

  /** firstText is the draft of the first member that takes a text: where a message in words goes. Null if there is none. */
  firstText() {
    let d = this.draft;
    while (d.field.kind === 'union' && d.inner) d = d.inner;
    if (d.field.kind === 'string' || d.field.kind === 'any') return d;
    if (d.field.kind !== 'object') return null;
    const texts = d.field.members.map(([name]) => [name, this.member(d, name)]).filter(([, m]) => m.field.kind === 'string' && !m.field.binary);
    const wanted = texts.find(([name]) => /^(message|question|query|prompt|text|input|q)$/i.test(name));
    return (wanted ?? texts.find(([, m]) => m.required) ?? texts[0])?.[1] ?? null;
  }
}

function same(a, b) {
  return a === b || JSON.stringify(a) === JSON.stringify(b);
}

// fits tells an alternative by the shape of a value only; the node validates.
function fits(schema, value, root) {
  const s = resolve(schema, root);
  if (!s) return true;
  const value1 = fixed(s);
  if (value1) return same(value1[0], value);
  if (Array.isArray(s.enum)) return s.enum.some((v) => same(v, value));
  const types = Array.isArray(s.type) ? s.type : [typeOf(s)];
  const is = Array.isArray(value) ? 'array' : value === null ? 'null' : typeof value;
  if (!types.includes('') && !types.some((x) => x === is || (x === 'integer' && Number.isInteger(value)) || (is === 'number' && x === 'number'))) return false;
  if (is !== 'object') return true;
  for (const name of list(s.required)) if (!Object.hasOwn(value, name)) return false;
  for (const [name, m] of Object.entries(isObject(s.properties) ? s.properties : {})) {
    const only = fixed(m);
    if (only && Object.hasOwn(value, name) && !same(only[0], value[name])) return false;
  }
  return !(s.additionalProperties === false && Object.keys(value).some((name) => !own(s.properties, name)));
}

/** parse returns the value of a JSON text, with large numbers in their own digits, or ABSENT. */
export function parse(source) {
  try {
    // The third argument has the digits, where the browser knows it.
    return JSON.parse(source, (name, v, context) => (typeof v === 'number' && context?.source && !exact(v, context.source) ? new Num(context.source) : v));
  } catch {
    return ABSENT;
  }
}

// exact is false if digits were lost: a long integer, or one beyond the range.
function exact(v, source) {
  return Number.isFinite(v) && (!/^-?\d+$/.test(source) || Number.isSafeInteger(v));
}

// plain turns Maps into objects.
function plain(v) {
  if (v instanceof Map) return Object.fromEntries([...v].map(([name, one]) => [name, plain(one)]));
  return Array.isArray(v) ? v.map(plain) : v;
}

/** toText writes JSON, of Maps and of numbers in their own digits too. */
export function toText(v, indent = 0, level = 0) {
  const gap = indent ? `\n${' '.repeat(indent * (level + 1))}` : '';
  const end = indent ? `\n${' '.repeat(indent * level)}` : '';
  if (v instanceof Num) return v.text;
  if (Array.isArray(v)) return v.length ? `[${v.map((one) => gap + toText(one, indent, level + 1)).join(',')}${end}]` : '[]';
  if (typeof v === 'object' && v !== null) {
    const entries = v instanceof Map ? [...v] : Object.entries(v);
    if (!entries.length) return '{}';
    return `{${entries.map(([name, one]) => `${gap}${JSON.stringify(name)}:${indent ? ' ' : ''}${toText(one, indent, level + 1)}`).join(',')}${end}}`;
  }
  return JSON.stringify(v) ?? 'null';
}
