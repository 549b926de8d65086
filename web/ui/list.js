// A list of any length, of which at most 40 rows are in the page.
import { html, useCallback, useEffect, useId, useLayoutEffect, useRef, useState } from './vendor/preact.js';

/** maxRows is the number of rows that are in the page at once. */
export const maxRows = 40;

// Rows beyond the visible ones, so that scrolling shows no gap.
const margin = 3;

/** windowOf returns the rows that are shown: [first, end). Its arguments are pixels, and the number of all rows. */
export function windowOf(top, height, row, count) {
  const visible = Math.min(Math.ceil(height / row) + 1, maxRows);
  const extra = Math.min(margin, Math.floor((maxRows - visible) / 2));
  const first = Math.max(0, Math.min(Math.floor(top / row) - extra, count - visible - 2 * extra));
  return [first, Math.min(count, first + visible + 2 * extra)];
}

/**
 * VirtualList shows items in rows of one height, as a listbox: one row is active, the arrows, Page Up, Page Down, Home and End move it, Enter or
 * a click opens it. row returns content without controls; initial is the key of the row that is active first
 */
export function VirtualList({ items, rowHeight, label, rowKey, row, rowLabel, onOpen, testid, initial = '', onActive }) {
  const id = useId();
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [key, setKey] = useState(initial);
  // The active row is kept by its key, so that it stays the same while others come and go; its place is searched near the last one.
  const place = useRef(0);
  const index = find(items, key, rowKey, place.current);
  place.current = index;

  const measure = useCallback(() => {
    const el = box.current;
    if (!el) return;
    const top = el.scrollTop;
    const height = el.clientHeight;
    setView((before) => (before.height === height && windowOf(before.top, height, rowHeight, 1e9)[0] === windowOf(top, height, rowHeight, 1e9)[0] ? before : { top, height }));
  }, [rowHeight]);

  useLayoutEffect(() => {
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [measure]);

  // A short list takes its own height; the style sheet bounds a long one.
  useLayoutEffect(() => {
    box.current.style.blockSize = `${items.length * rowHeight + 2}px`;
  }, [items.length, rowHeight]);

  // A list that became shorter may be scrolled beyond its end.
  useEffect(measure, [items.length]);

  useLayoutEffect(() => {
    if (initial && index > 0 && box.current) box.current.scrollTop = Math.max(0, index * rowHeight - box.current.clientHeight / 2);
  }, [rowHeight]);

  const activate = (next) => {
    const to = Math.max(0, Math.min(items.length - 1, next));
    if (!items[to]) return;
    place.current = to;
    setKey(rowKey(items[to]));
    onActive?.(rowKey(items[to]));
    const el = box.current;
    const start = to * rowHeight;
    if (start < el.scrollTop) el.scrollTop = start;
    else if (start + rowHeight > el.scrollTop + el.clientHeight) el.scrollTop = start + rowHeight - el.clientHeight;
    measure();
  };

  const keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(view.height / rowHeight) - 1);
    const next = { ArrowDown: index + 1, ArrowUp: index - 1, PageDown: index + page, PageUp: index - page, Home: 0, End: items.length - 1 }[event.key];
    if (next !== undefined) activate(next);
    else if ((event.key === 'Enter' || event.key === ' ') && items[index]) onOpen(items[index]);
    else return;
    event.preventDefault();
  };

  // One function for all renderings: a row whose props are the same is not rendered again.
  const latest = useRef(null);
  latest.current = { activate, onOpen };
  const take = useCallback((i, item) => {
    latest.current.activate(i);
    latest.current.onOpen(item);
  }, []);

  const [first, end] = windowOf(view.top, view.height, rowHeight, items.length);
  const shown = items.slice(first, end);
  const rowId = (i) => `${id}-${rowKey(items[i])}`;
  // The active row must be in the page for aria-activedescendant; while it is scrolled away there is none.
  const active = index >= first && index < end && items[index] ? rowId(index) : undefined;
  return html`<div class="vlist" ref=${box} role="listbox" aria-label=${label} tabindex="0" aria-activedescendant=${active} onScroll=${measure} onKeyDown=${keys}
    data-testid=${testid} data-count=${items.length}>
    <div class="vlist-all" role="presentation" ref=${(el) => el && (el.style.blockSize = `${items.length * rowHeight}px`)}>
      ${shown.map((item, i) => html`<${Row} key=${rowKey(item)} id=${rowId(first + i)} at=${(first + i) * rowHeight} height=${rowHeight} index=${first + i} count=${items.length}
        active=${first + i === index} item=${item} row=${row} label=${rowLabel} onTake=${take} />`)}
    </div>
  </div>`;
}

function Row({ id, at, height, index, count, active, item, row, label, onTake }) {
  const ref = useRef(null);
  useLayoutEffect(() => {
    const { style } = ref.current;
    style.transform = `translateY(${at}px)`;
    style.blockSize = `${height}px`;
  }, [at, height]);
  const click = () => {
    // A selected text was meant, not the row.
    if (String(getSelection())) return;
    onTake(index, item);
  };
  return html`<div ref=${ref} id=${id} class="vlist-row" role="option" aria-selected=${active ? 'true' : 'false'} aria-setsize=${count} aria-posinset=${index + 1}
    aria-label=${label?.(item)} onClick=${click} data-testid="row">${row(item, active)}</div>`;
}

function find(items, key, rowKey, near) {
  if (key === '' || !items.length) return 0;
  if (items[near] && rowKey(items[near]) === key) return near;
  const at = items.findIndex((item) => rowKey(item) === key);
  return at >= 0 ? at : Math.max(0, Math.min(near, items.length - 1));
}
