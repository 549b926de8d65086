// The answer of an agent: read as it arrives, bounded in memory, and shown as text. It comes from an untrusted peer: HTML and SVG are text here.
import { html, useEffect, useRef, useState } from './vendor/preact.js';
import { Badge, Button, Copy } from './ui.js';
import { bytes, clean, ms, num, plural, t } from './words.js';

/** maxText is the text of one answer or one part that is shown, in characters. */
export const maxText = 200_000;
/** maxParts is the number of parts that are kept: of a stream that never ends, the newest. */
export const maxParts = 200;
// The characters of all parts that are kept: the page shows them at once.
const maxPartsText = 4 * maxText;
/** maxKept is what is kept to be saved as a file, in bytes. */
export const maxKept = 16 << 20;

const clock = () => performance.now();

// kindOf says how a media type is shown.
function kindOf(media) {
  const type = media.split(';')[0].trim().toLowerCase();
  if (type === '') return 'text';
  if (type === 'application/x-ndjson' || type === 'application/jsonl' || type === 'application/json-seq') return 'parts';
  if (type === 'application/json' || type.endsWith('+json')) return 'json';
  if (type === 'image/svg+xml' || type.startsWith('text/') || type.endsWith('+xml') || /^application\/(xml|xhtml|javascript|ecmascript|yaml|x-yaml|toml|sql|graphql)/.test(type)) return 'text';
  return 'binary';
}

/** An Answer collects the body of one response. Its members are read by AnswerView; version counts the changes. */
export class Answer {
  constructor(start = clock()) {
    this.start = start;
    this.media = '';
    this.kind = 'none';
    this.status = 'running'; // then completed, failed or canceled
    this.bytes = 0;
    this.count = 0; // parts, also those that are no longer kept
    this.parts = [];
    this.partsText = 0;
    this.text = '';
    this.cut = false; // the text has more than is kept
    this.texts = true; // all parts are strings
    this.joined = '';
    this.chunks = [];
    this.kept = 0;
    this.first = undefined;
    this.took = undefined;
    this.error = null;
    this.version = 0;
    this.line = '';
    this.lineCut = false;
    this.decoder = new TextDecoder();
  }

  begin(media) {
    this.media = media;
    this.kind = kindOf(media);
  }

  /** feed takes bytes of the body. */
  feed(chunk) {
    this.version++;
    if (this.first === undefined) this.first = clock() - this.start;
    this.bytes += chunk.byteLength;
    if (this.chunks && this.kept + chunk.byteLength <= maxKept) {
      this.chunks.push(chunk);
      this.kept += chunk.byteLength;
    } else {
      this.chunks = null; // half a file is no file
    }
    if (this.kind === 'binary') return;
    const text = this.decoder.decode(chunk, { stream: true });
    if (this.kind === 'parts') this.feedLines(text);
    else this.feedText(text);
  }

  feedText(text) {
    const room = maxText - this.text.length;
    if (text.length > room) this.cut = true;
    if (room > 0) this.text += text.slice(0, room);
  }

  feedLines(text) {
    let start = 0;
    for (let end; (end = text.indexOf('\n', start)) >= 0; start = end + 1) {
      this.pending(text.slice(start, end));
      this.part();
    }
    this.pending(text.slice(start));
  }

  // A line without an end must not fill the memory.
  pending(text) {
    const room = maxText - this.line.length;
    if (text.length > room) this.lineCut = true;
    if (room > 0) this.line += text.slice(0, room);
  }

  part() {
    const { line, lineCut } = this;
    this.line = '';
    this.lineCut = false;
    if (line.trim() === '') return;
    this.count++;
    let value = line;
    let isText = false;
    if (!lineCut) {
      try {
        value = JSON.parse(line);
        isText = typeof value === 'string';
      } catch {
        // Not JSON: the line is shown.
      }
    }
    this.texts = this.texts && isText;
    if (isText) {
      this.joined += value;
      if (this.joined.length > maxText) {
        // The end of a stream is what a reader waits for.
        this.joined = this.joined.slice(-maxText * 0.75);
        this.cut = true;
      }
    }
    this.parts.push({ n: this.count, text: isText ? value : lineCut ? line : pretty(value), cut: lineCut });
    this.partsText += this.parts.at(-1).text.length;
    while (this.parts.length > maxParts || (this.partsText > maxPartsText && this.parts.length > 1)) this.partsText -= this.parts.shift().text.length;
  }

  end(status, error = null) {
    this.version++;
    if (this.kind === 'parts') {
      this.pending(this.decoder.decode());
      this.part();
    }
    this.status = status;
    this.error = error;
    this.took = clock() - this.start;
  }

  /** shown is the text that is shown, for a copy. */
  shown() {
    if (this.kind === 'parts') return this.texts ? this.joined : this.parts.map((p) => p.text).join('\n');
    if (this.kind === 'json' && !this.cut) {
      try {
        const value = JSON.parse(this.text);
        return typeof value === 'string' ? value : JSON.stringify(value, null, 2).slice(0, maxText * 2);
      } catch {
        // Broken off: as it came.
      }
    }
    return this.text;
  }
}

function pretty(value) {
  return typeof value === 'string' ? value : JSON.stringify(value).slice(0, maxText);
}

/** receive reads the body of a response into an answer until its end, and calls changed at most 12 times a second: a reader follows no more. */
export async function receive(response, answer, changed) {
  answer.begin(response.status === 204 ? '' : response.headers.get('Content-Type') ?? '');
  let waiting = false;
  const soon = () => {
    if (waiting) return;
    waiting = true;
    // The first part is shown at once.
    setTimeout(() => {
      waiting = false;
      changed();
    }, answer.version <= 1 ? 0 : 80);
  };
  const reader = response.body?.getReader();
  if (!reader) return;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      answer.feed(value);
      soon();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const tones = { running: 'info', completed: 'good', failed: 'bad', canceled: 'warn' };
const statusText = { running: 'running', completed: 'completed', failed: 'failed', canceled: 'canceled' };

/** AnswerView shows an Answer. version is that of the answer: the same props would be no change. */
export function AnswerView({ answer, name, children }) {
  const [asParts, setAsParts] = useState(false);
  const pre = useRef(null);
  const stuck = useRef(true);
  // New text is followed, unless the reader has scrolled up.
  useEffect(() => {
    const el = pre.current;
    if (el && stuck.current && answer.status === 'running') el.scrollTop = el.scrollHeight;
  });
  const scrolled = (event) => {
    const el = event.currentTarget;
    stuck.current = el.scrollHeight - el.scrollTop - el.clientHeight < 24;
  };
  const empty = answer.bytes === 0;
  const text = empty || answer.kind === 'binary' ? '' : clean2(answer.shown());
  const list = answer.kind === 'parts' && (!answer.texts || asParts);
  return html`<div class="answer" data-testid="answer" data-status=${answer.status} data-kind=${answer.kind} aria-busy=${answer.status === 'running' ? 'true' : undefined}>
    <div class="answer-head"><${Badge} tone=${tones[answer.status]}>${t(statusText[answer.status])}</${Badge}>
      ${answer.first !== undefined && html`<span>${t('first part after {time}', { time: ms(answer.first) })}</span>`}
      ${answer.took !== undefined && html`<span data-testid="took">${t('whole {time}', { time: ms(answer.took) })}</span>`}
      ${answer.count > 0 && html`<span data-testid="part-count">${plural(answer.count, 'part')}</span>`}
      ${answer.bytes > 0 && html`<span>${bytes(answer.bytes)}</span>`}
      ${answer.media && html`<code>${clean(answer.media, 60)}</code>`}
      <span class="grow"></span>
      ${answer.kind === 'parts' && answer.texts && answer.count > 1 && html`<${Button} kind="quiet" onClick=${() => setAsParts(!asParts)} aria-pressed=${asParts ? 'true' : 'false'}>${t('Parts')}</${Button}>`}
      ${text && html`<${Copy} text=${answer.shown()} label=${t('answer')} />`}
      ${answer.status !== 'running' && !empty && answer.chunks && (answer.kind === 'binary' || answer.bytes > 2000) && html`<${Button} kind="quiet" icon="down" label=${t('Save the answer')} onClick=${() => save(answer, name)} />`}
    </div>
    ${answer.cut && html`<p class="muted" data-testid="cut">${t('Only a part is shown: the answer has {size}.', { size: bytes(answer.bytes) })}</p>`}
    ${empty && answer.status === 'completed' && html`<p class="muted">${t('The action has ended without an output.')}</p>`}
    ${empty && answer.status === 'running' && html`<p class="muted"><span class="spinner" aria-hidden="true"></span> ${t('Waiting for the agent')}</p>`}
    ${answer.kind === 'binary' && !empty && html`<p data-testid="binary">${t('Data of type {type}, {size}: not shown here.', { type: clean(answer.media, 80), size: bytes(answer.bytes) })}</p>`}
    ${text && !list && html`<pre ref=${pre} class="answer-text" tabindex="0" role="group" aria-label=${t('Answer')} onScroll=${scrolled} data-testid="answer-text">${text}</pre>`}
    ${list && html`<div ref=${pre} class="answer-text" tabindex="0" role="group" aria-label=${t('Answer')} onScroll=${scrolled} data-testid="answer-parts">
      ${answer.count > answer.parts.length && html`<p class="muted">${t('Not kept: {n} at the beginning.', { n: plural(answer.count - answer.parts.length, 'part') })}</p>`}
      ${answer.parts.map((p) => html`<pre class="answer-part" key=${p.n}>${clean2(p.text)}</pre>`)}</div>`}
    ${children}
  </div>`;
}

// An answer keeps its lines; only what changes the direction or the look of text goes.
function clean2(text) {
  return clean(text, maxText * 2);
}

function save(answer, name) {
  // A type that no browser opens: an HTML document at a blob address would have the origin of this page.
  const address = URL.createObjectURL(new Blob(answer.chunks, { type: 'application/octet-stream' }));
  const a = document.createElement('a');
  a.href = address;
  a.download = `${clean(name, 60).replace(/[^\w.-]+/g, '_') || 'answer'}${extension(answer.media)}`;
  a.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function extension(media) {
  const type = media.split(';')[0].trim();
  return { 'application/json': '.json', 'application/x-ndjson': '.jsonl', 'image/png': '.png', 'image/jpeg': '.jpg', 'application/pdf': '.pdf', 'audio/mpeg': '.mp3', 'audio/wav': '.wav', 'text/plain': '.txt' }[type] ?? '.bin';
}
