// The form of a schema: fields for what schema.js describes, and the same as JSON text.
import { html, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from './vendor/preact.js';
import { Button, cx, Segments } from './ui.js';
import { clean, num, plural, t } from './words.js';
import { ABSENT, Form, parse, pointer, toText, variantName } from './schema.js';

export { Form } from './schema.js';

// Members and options that are shown at once; the others are found by the filter or by "Show more".
const page = 30;
const optionPage = 200;
// Groups that must be filled in below this depth are closed at first: a schema may demand 3^8 fields.
const openDepth = 4;
// A file is base64 in the body, which a node takes up to 4 MiB.
const maxFile = 2_900_000;

const multiline = /^(text|message|content|body|prompt|description|code|markdown|html|note|comment|question)$/i;

/** describeError returns the words for an error of a field: of the page, or of the node. */
function describeError(text) {
  if (text === 'json') return t('This is not JSON.');
  if (text === 'missing') return t('A value is missing.');
  if (text === 'number') return t('This is not a number.');
  return clean(text, 300);
}

/** rangeText returns a range of numbers, or of counts of a word; an end may be absent. */
function rangeText(low, high, word) {
  const has = (v) => typeof v === 'number';
  const end = (n) => (word ? plural(n, word) : num(n));
  if (has(low) && has(high)) return t('{low} to {high}', { low: num(low), high: end(high) });
  if (has(low)) return t('at least {low}', { low: end(low) });
  return has(high) ? t('at most {high}', { high: end(high) }) : '';
}

/** hintOf says what a schema demands, in words. A pattern is shown and never run: it may take hours. */
function hintOf(s) {
  const more = typeof s.exclusiveMinimum === 'number' ? t('more than {low}', { low: s.exclusiveMinimum }) : '';
  const less = typeof s.exclusiveMaximum === 'number' ? t('less than {high}', { high: s.exclusiveMaximum }) : '';
  const example = Array.isArray(s.examples) ? s.examples[0] : undefined;
  return [
    rangeText(s.minimum, s.maximum),
    more,
    less,
    typeof s.multipleOf === 'number' ? t('a multiple of {n}', { n: s.multipleOf }) : '',
    rangeText(s.minLength || undefined, s.maxLength, 'character'),
    rangeText(s.minItems || undefined, s.maxItems, 'entry'),
    typeof s.format === 'string' ? clean(s.format, 30) : '',
    typeof s.unit === 'string' ? t('unit {unit}', { unit: clean(s.unit, 40) }) : '',
    typeof s.pattern === 'string' ? t('pattern {pattern}', { pattern: clean(s.pattern, 80) }) : '',
    Object.hasOwn(s, 'default') ? t('default {value}', { value: clean(shown(s.default), 80) }) : '',
    example !== undefined ? t('for example {value}', { value: clean(shown(example), 80) }) : '',
  ].filter(Boolean).join(' · ');
}

function shown(v) {
  return typeof v === 'string' ? v : toText(v);
}

/**
 * SchemaForm shows a Form. problems are errors by JSON pointer, of the node or of Form.body; a new list moves the focus to the first field that
 * has one. onSubmit is called by Enter and by a submit button among the children.
 */
export function SchemaForm({ form, problems = [], onSubmit, onChange, label, testid, children }) {
  const [, draw] = useState(0);
  const id = useId();
  const root = useRef(null);
  const change = () => {
    draw((n) => n + 1);
    onChange?.();
  };
  const errors = useMemo(() => {
    const map = new Map();
    for (const problem of problems.slice(0, 100)) {
      const at = form.json ? '' : form.place(problem);
      if (!map.has(at)) map.set(at, []);
      const where = form.json && problem.field ? `${clean(problem.field, 80)}: ` : '';
      map.get(at).push(where + describeError(problem.description));
    }
    return map;
  }, [problems, form.json]);
  useEffect(() => {
    if (!problems.length) return;
    const field = root.current?.querySelector('[aria-invalid=true]') ?? root.current?.querySelector('.form-errors');
    field?.focus();
  }, [problems]);
  const toForm = () => {
    if (form.showForm()) change();
  };
  const empty = form.draft.field.kind === 'empty';
  const group = ['object', 'union', 'array', 'tuple', 'set'].includes(form.draft.field.kind) && !form.draft.raw;
  const top = group || form.json ? errors.get('') ?? [] : [];
  const badJSON = form.json && form.text.trim() !== '' && parse(form.text) === ABSENT;
  return html`<form class="schema-form" ref=${root} noValidate aria-label=${label} data-testid=${testid} data-mode=${form.json ? 'json' : 'form'} autocomplete="off"
    onSubmit=${(event) => { event.preventDefault(); onSubmit(); }}
    onKeyDown=${(event) => { if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); onSubmit(); } }}>
    ${!empty && html`<${Segments} label=${t('Input as')} value=${form.json ? 'json' : 'form'} testid="form-mode" options=${[['form', t('Form')], ['json', t('JSON')]]}
      onChange=${(mode) => { if (mode === 'json' && !form.json) { form.showJSON(); change(); } else if (mode === 'form' && form.json) toForm(); }} />`}
    ${top.length > 0 && !form.json && html`<div class="form-errors" role="alert" tabindex="-1">${top.map((text, i) => html`<p class="error" key=${i}>${text}</p>`)}</div>`}
    ${form.json
      ? html`<div class=${cx('field', (top.length || badJSON) && 'invalid')}><label for=${`${id}-json`}>${t('JSON')}</label>
          <textarea id=${`${id}-json`} class="code-input" rows=${Math.min(18, Math.max(4, form.text.split('\n', 20).length + 1))} spellcheck=${false} value=${form.text} data-testid="json-input"
            aria-describedby=${top.length || badJSON ? `${id}-json-error` : undefined} aria-invalid=${top.length ? 'true' : undefined} onInput=${(event) => { form.text = event.currentTarget.value; change(); }}></textarea>
          ${(top.length > 0 || badJSON) && html`<div id=${`${id}-json-error`}>${(top.length ? top : [t('This is not JSON.')]).map((text, i) => html`<p class="error" key=${i}>${text}</p>`)}</div>`}</div>`
      : empty
        ? html`<p class="muted">${t('This needs no input.')}</p>`
        : html`<${Part} form=${form} draft=${form.draft} at="" name="" errors=${errors} change=${change} prefix=${id} />`}
    ${children}
  </form>`;
}

// Part shows one draft with its label.
function Part({ form, draft: d, at, name, errors, change, prefix, plain, removed, removeLabel }) {
  const f = d.field;
  const s = f.schema;
  const id = `${prefix}-${d.id}`;
  const mine = errors.get(at) ?? [];
  const title = clean(typeof s.title === 'string' && s.title ? s.title : name, 120);
  const sub = name && title !== name ? clean(name, 60) : '';
  const description = clean(typeof s.description === 'string' ? s.description : '', 500);
  const constraints = f.kind === 'const' ? '' : hintOf(s);
  const hints = [description, constraints].filter(Boolean);
  const described = cx(hints.length && `${id}-hint`, mine.length && `${id}-error`) || undefined;
  const invalid = mine.length ? 'true' : undefined;
  const notes = html`${hints.length > 0 && html`<p class="hint" id=${`${id}-hint`}>${hints.join(' · ')}</p>`}
    ${mine.length > 0 && html`<div id=${`${id}-error`}>${mine.map((text, i) => html`<p class="error" key=${i}>${text}</p>`)}</div>`}`;
  const set = (fn) => { fn(); change(); };
  const asRaw = d.raw || f.kind === 'json';

  const nullBox = f.nullable && html`<label class="null-box"><input type="checkbox" checked=${d.isNull} onChange=${(event) => set(() => { d.isNull = event.currentTarget.checked; if (d.isNull) d.on = true; })} />null</label>`;
  const remove = removed && html`<${Button} kind="quiet" icon="close" label=${removeLabel} onClick=${removed} />`;

  if (!asRaw && ['object', 'array', 'tuple', 'set', 'union'].includes(f.kind)) {
    const open = d.on && !d.isNull;
    const optional = !d.required && d.depth > 0;
    const choose = f.kind === 'union' && html`<${Choice} id=${id} form=${form} d=${d} optional=${!d.required} set=${set} label=${title || t('Alternative')} described=${described} />`;
    const body = html`
      ${f.kind === 'union' ? choose : ''}
      ${notes}
      ${open && f.kind === 'object' && html`<${Members} form=${form} d=${d} at=${at} errors=${errors} change=${change} prefix=${prefix} />`}
      ${open && f.kind === 'union' && d.inner && html`<${Part} key=${d.inner.id} form=${form} draft=${d.inner} at=${at} name="" plain errors=${errors} change=${change} prefix=${prefix} />`}
      ${open && (f.kind === 'array' || f.kind === 'tuple') && html`<${Items} form=${form} d=${d} at=${at} title=${title} errors=${errors} change=${change} prefix=${prefix} />`}
      ${f.kind === 'set' && html`<div class="checks">${f.options.map((o, i) => html`<label key=${i}><input type="checkbox" checked=${d.picked.has(i)}
        onChange=${(event) => set(() => { d.on = true; if (event.currentTarget.checked) d.picked.add(i); else d.picked.delete(i); if (!d.picked.size && !d.required) d.on = false; })} />${clean(o.label, 120)}</label>`)}</div>`}`;
    // The root and the chosen alternative need no frame of their own.
    if (!title || plain) return html`<div class="part" tabindex=${mine.length && at !== '' ? '-1' : undefined}>${nullBox}${body}</div>`;
    return html`<fieldset class=${cx('part', mine.length && 'invalid')} data-testid=${`field-${at}`}>
      <legend>${title}${d.required && d.depth > 0 && html`<span class="required" aria-hidden="true"> *</span>`}${sub && html` <code class="sub">${sub}</code>`}</legend>
      ${(nullBox || remove || (optional && f.kind !== 'union' && f.kind !== 'set')) && html`<div class="part-tools">
        ${optional && f.kind !== 'union' && f.kind !== 'set' && (open
          ? html`<${Button} kind="quiet" icon="close" onClick=${() => set(() => form.close(d))}>${t('Leave out')}</${Button}>`
          : !d.isNull && html`<${Button} onClick=${() => set(() => form.open(d))} data-testid="open-part">${t('Fill in')}</${Button}>`)}
        ${nullBox}${remove}</div>`}
      ${!d.isNull && html`<${Fold} closed=${d.required && d.depth >= openDepth && !errorsBelow(errors, at)} title=${title}>${body}</${Fold}>`}
    </fieldset>`;
  }

  let control;
  const shared = { id, 'aria-describedby': described, 'aria-invalid': invalid, disabled: d.isNull, 'aria-required': d.required && d.depth > 0 ? 'true' : undefined };
  const input = (event) => set(() => { d.text = event.currentTarget.value; d.on = true; });
  if (asRaw) {
    control = html`<textarea ...${shared} class="code-input" rows=${Math.min(10, d.text.split('\n', 10).length + 1)} spellcheck=${false} value=${d.text} onInput=${input} placeholder="JSON"></textarea>
      ${d.raw && f.kind !== 'json' && html`<${Button} kind="quiet" onClick=${() => set(() => form.close(d))}>${t('Use a field')}</${Button}>`}`;
  } else {
    switch (f.kind) {
      case 'string':
        if (f.binary) control = html`<${FileField} d=${d} shared=${shared} set=${set} input=${input} />`;
        else if (multiline.test(name) && !(s.maxLength <= 120)) {
          control = html`<textarea ...${shared} rows=${d.text.includes('\n') || d.text.length > 80 ? 4 : 2} value=${d.text} onInput=${input} onKeyDown=${enterSubmits}></textarea>`;
        } else {
          control = html`<input ...${shared} type=${s.format === 'date' ? 'date' : s.format === 'password' || s.writeOnly === true && /password|secret|token/i.test(name) ? 'password' : 'text'} value=${d.text} onInput=${input} spellcheck=${false} />`;
        }
        break;
      case 'number':
        control = html`<input ...${shared} type="text" inputmode=${f.integer ? 'numeric' : 'decimal'} value=${d.text} onInput=${input} class="number" />`;
        break;
      case 'boolean':
        control = html`<select ...${shared} value=${d.index} onChange=${(event) => set(() => { d.index = event.currentTarget.value; })}>
          <option value="">${t('not set')}</option><option value="true">${t('Yes')}</option><option value="false">${t('No')}</option></select>`;
        break;
      case 'enum':
        control = html`<${Options} d=${d} shared=${shared} set=${set} label=${title} />`;
        break;
      case 'const':
        control = d.required
          ? html`<input ...${shared} type="text" readOnly value=${clean(shown(s.const), 200)} />`
          : html`<label class="null-box"><input ...${shared} type="checkbox" checked=${d.on} onChange=${(event) => set(() => { d.on = event.currentTarget.checked; })} /><code>${clean(shown(s.const), 200)}</code></label>`;
        break;
      case 'null':
        control = html`<label class="null-box"><input ...${shared} type="checkbox" checked=${d.on} onChange=${(event) => set(() => { d.on = event.currentTarget.checked; })} />null</label>`;
        break;
      default:
        control = html`<textarea ...${shared} rows=${Math.min(12, d.text.split('\n', 12).length + 1)} value=${d.text} onInput=${input} data-testid="any-input"></textarea>`;
    }
  }
  const words = title || (f.kind === 'any' ? t('Input: text, or JSON') : t('Input'));
  return html`<div class=${cx('field', mine.length && 'invalid')} data-testid=${`field-${at}`}>
    <label for=${id}>${words}${d.required && d.depth > 0 && html`<span class="required" aria-hidden="true"> *</span>`}${sub && html` <code class="sub">${sub}</code>`}</label>
    <div class="field-line">${control}${nullBox}${remove}</div>
    ${notes}
  </div>`;
}

// In a field of a message Enter sends, as in a chat; Shift+Enter is a new line.
function enterSubmits(event) {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.currentTarget.form?.requestSubmit();
}

function errorsBelow(errors, at) {
  for (const key of errors.keys()) if (key === at || key.startsWith(`${at}/`)) return true;
  return false;
}

function Fold({ closed, title, children }) {
  const [open, setOpen] = useState(false);
  if (!closed || open) return children;
  return html`<${Button} onClick=${() => setOpen(true)} label=${t('Show the fields of {name}', { name: title })}>${t('Show fields')}</${Button}>`;
}

function Members({ form, d, at, errors, change, prefix }) {
  const f = d.field;
  const [filter, setFilter] = useState('');
  const [limit, setLimit] = useState(page);
  const many = f.members.length > page;
  const words = filter.trim().toLowerCase();
  const matching = words ? f.members.filter(([name, s]) => `${name} ${typeof s?.title === 'string' ? s.title : ''}`.toLowerCase().includes(words)) : f.members;
  const visible = new Set(matching.slice(0, limit).map(([name]) => name));
  // A member with an error is shown wherever it stands.
  const list = f.members.filter(([name]) => visible.has(name) || (errors.size > 0 && errorsBelow(errors, pointer(at, name))));
  const rest = matching.length - Math.min(matching.length, limit);
  return html`
    ${many && html`<div class="members-filter"><label class="visually-hidden" for=${`${prefix}-${d.id}-filter`}>${t('Filter fields')}</label>
      <input id=${`${prefix}-${d.id}-filter`} type="search" placeholder=${t('Filter fields')} value=${filter} onInput=${(event) => setFilter(event.currentTarget.value)} data-testid="filter-fields" />
      <span class="muted">${t('{n} of {total}', { n: num(list.length), total: plural(f.members.length, 'field') })}</span></div>`}
    ${list.map(([name]) => html`<${Part} key=${name} form=${form} draft=${form.member(d, name)} at=${pointer(at, name)} name=${name} errors=${errors} change=${change} prefix=${prefix} />`)}
    ${rest > 0 && html`<${Button} onClick=${() => setLimit(limit + page)} data-testid="more-fields">${t('Show {n} more', { n: num(Math.min(rest, page)) })}</${Button}>`}
    ${f.additional !== undefined && html`
      ${d.rows.map((row, i) => html`<div class="row-extra" key=${row.draft.id}>
        <div class="field"><label for=${`${prefix}-${row.draft.id}-name`}>${t('Name')}</label><input id=${`${prefix}-${row.draft.id}-name`} type="text" value=${row.name} onInput=${(event) => { row.name = event.currentTarget.value; change(); }} /></div>
        <${Part} form=${form} draft=${row.draft} at=${pointer(at, row.name)} name=${row.name || t('Value')} errors=${errors} change=${change} prefix=${prefix}
          removeLabel=${t('Remove {name}', { name: clean(row.name, 40) || t('Value') })} removed=${() => { d.rows.splice(i, 1); change(); }} /></div>`)}
      <${Button} onClick=${() => { form.add(d); change(); }}>${t('Add a member')}</${Button}>`}`;
}

function Items({ form, d, at, title, errors, change, prefix }) {
  const tuple = d.field.kind === 'tuple';
  const most = typeof d.field.schema.maxItems === 'number' ? d.field.schema.maxItems : 200;
  const box = useRef(null);
  const added = useRef(false);
  useLayoutEffect(() => {
    if (!added.current) return;
    added.current = false;
    const fields = box.current?.querySelectorAll('.item input, .item textarea, .item select');
    fields?.[fields.length - 1]?.focus();
  });
  return html`<div class="items" ref=${box}>
    ${d.items.map((item, i) => html`<div class="item" key=${item.id}><${Part} form=${form} draft=${item} at=${pointer(at, i)} name=${`${title || t('Entry')} ${i + 1}`} errors=${errors} change=${change} prefix=${prefix}
      removeLabel=${t('Remove entry {n}', { n: i + 1 })} removed=${tuple ? undefined : () => { d.items.splice(i, 1); change(); }} /></div>`)}
    ${!tuple && d.items.length < most && html`<${Button} onClick=${() => { form.add(d); added.current = true; change(); }} data-testid="add-item">${t('Add an entry')}</${Button}>`}
  </div>`;
}

function Choice({ id, form, d, optional, set, label, described }) {
  const names = useMemo(() => d.field.variants.map((v, i) => clean(variantName(v, form.root), 80) || t('Alternative {n}', { n: i + 1 })), [d.field]);
  return html`<div class="field"><label for=${id} class="visually-hidden">${label}</label><select id=${id} value=${d.index} aria-describedby=${described} data-testid="alternative"
    onChange=${(event) => { const { value } = event.currentTarget; set(() => form.choose(d, value)); }}>
    ${optional && html`<option value="">${t('not set')}</option>`}${names.map((name, i) => html`<option key=${i} value=${String(i)}>${name}</option>`)}</select></div>`;
}

function Options({ d, shared: props, set, label }) {
  const [filter, setFilter] = useState('');
  const all = d.field.options;
  const many = all.length > optionPage;
  const words = filter.trim().toLowerCase();
  const matching = all.map((o, i) => [o, i]).filter(([o, i]) => !words || o.label.toLowerCase().includes(words) || String(i) === d.index);
  const list = many ? matching.slice(0, optionPage) : matching;
  if (d.index !== '' && !list.some(([, i]) => String(i) === d.index)) list.unshift([all[Number(d.index)], Number(d.index)]);
  const text = (o) => (o.value === '' ? t('(empty text)') : o.value === null ? o.label : clean(o.label, 120));
  return html`${many && html`<input type="search" class="options-filter" aria-label=${t('Filter {name}', { name: label })} placeholder=${t('Filter')} value=${filter} onInput=${(event) => setFilter(event.currentTarget.value)} />`}
    <select ...${props} value=${d.index} onChange=${(event) => { const { value } = event.currentTarget; set(() => { d.index = value; d.on = value !== ''; }); }}>
      <option value="">${t('not set')}</option>${list.map(([o, i]) => html`<option key=${i} value=${String(i)}>${text(o)}</option>`)}</select>
    ${many && matching.length > optionPage && html`<span class="muted">${t('{n} of {total}', { n: num(list.length), total: num(all.length) })}</span>`}`;
}

function FileField({ d, shared: props, set, input }) {
  const [problem, setProblem] = useState('');
  const read = (event) => {
    const file = event.currentTarget.files?.[0];
    if (!file) return;
    if (file.size > maxFile) {
      setProblem(t('The file is too large.'));
      return;
    }
    setProblem('');
    const reader = new FileReader();
    reader.onload = () => set(() => { d.text = String(reader.result).replace(/^[^,]*,/, ''); d.on = true; d.file = file.name; });
    reader.readAsDataURL(file);
  };
  return html`<input ...${props} type="file" onChange=${read} />
    <textarea class="code-input" rows="2" aria-label=${t('Base64')} placeholder=${t('Base64')} value=${d.text} onInput=${input} disabled=${props.disabled} spellcheck=${false}></textarea>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}`;
}
