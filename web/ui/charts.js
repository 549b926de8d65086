// Charts over time, drawn as SVG with the colors of the style sheet.
import { html, useLayoutEffect, useRef, useState } from './vendor/preact.js';
import { clean, t } from './words.js';

const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });
const clockSeconds = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });

// The space around the lines: the values stand before them, the times below.
const before = 58;
const after = 16;
const above = 8;
const below = 22;

const known = (v) => v !== null && v !== undefined;

/** stepsOf returns the round values between 0 and a maximum that have a line. */
function stepsOf(max) {
  const power = 10 ** Math.floor(Math.log10(max / 3.5));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= max / 3.5);
  return Array.from({ length: Math.floor(max / step) + 1 }, (_, i) => i * step);
}

/** hoursOf returns the times between two ones that stand below a chart, at most n. */
function hoursOf(from, to, n) {
  const step = [10, 30, 60, 300, 600, 900, 1800, 3600].find((s) => (to - from) / s <= n) ?? 7200;
  const first = Math.ceil(from / step) * step;
  return Array.from({ length: Math.max(0, Math.floor((to - first) / step) + 1) }, (_, i) => first + i * step);
}

/** shapeOf returns the paths of a series: its line, which unknown values interrupt, the area below it, and values between unknown ones. */
function shapeOf(values, x, y) {
  let line = '';
  let area = '';
  let alone = '';
  for (let i = 0, j; i < values.length; i = j + 1) {
    j = i;
    if (!known(values[i])) continue;
    while (known(values[j + 1])) j++;
    const points = values.slice(i, j + 1).map((v, k) => `${x(i + k)} ${y(v)}`);
    if (i === j) alone += `M${points[0]}h0`;
    else {
      line += `M${points.join('L')}`;
      area += `M${x(i)} ${y(0)}L${points.join('L')}L${x(j)} ${y(0)}z`;
    }
  }
  return { line, area, alone };
}

/**
 * Chart draws series over time. times are seconds since 1970, in equal steps; series are {label, values, token: the color, format(value), fill}.
 * The legend has the values at the pointer, else the last ones.
 */
export function Chart({ title, times, series, height = 120 }) {
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  const [at, setAt] = useState(null);
  useLayoutEffect(() => {
    const measure = () => setWidth(box.current?.clientWidth ?? 0);
    const watch = new ResizeObserver(measure);
    watch.observe(box.current);
    measure();
    return () => watch.disconnect();
  }, []);
  const last = times.length - 1;
  const max = 1.12 * Math.max(...series.flatMap((s) => s.values.filter(known))) || 1;
  const top = max > 0 && Number.isFinite(max) ? max : 1;
  const round = (n) => Math.round(n * 10) / 10;
  const wide = Math.max(1, width - before - after);
  const x = (i) => round(before + (i / Math.max(1, last)) * wide);
  const y = (v) => round(height - below - (v / top) * (height - above - below));
  const point = (event) => {
    const i = Math.round(((event.clientX - box.current.getBoundingClientRect().left - before) / wide) * last);
    setAt(i >= 0 && i <= last ? i : null);
  };
  const lastOf = (s) => s.values.findLast(known);
  const shown = (s) => (at === null ? lastOf(s) : s.values[at]);
  const said = series.map((s) => `${s.label} ${s.format(lastOf(s))}`).join(', ');
  const picture = () => html`<svg width=${width} height=${height} aria-hidden="true" focusable="false">
    ${stepsOf(top).map((v) => html`<path class="chart-grid" d=${`M${before} ${y(v)}h${wide}`} /><text x=${before - 6} y=${y(v) + 4} text-anchor="end">${series[0].format(v)}</text>`)}
    ${hoursOf(times[0], times[last], wide / 70).map((s) => html`<text x=${x(((s - times[0]) / (times[last] - times[0] || 1)) * last)} y=${height - 6} text-anchor="middle">${clock.format(s * 1000)}</text>`)}
    ${at !== null && html`<path class="chart-grid" d=${`M${x(at)} ${above}V${height - below}`} />`}
    ${series.map((s, i) => {
      const { line, area, alone } = shapeOf(s.values, x, y);
      return html`<g class=${`chart-series ${s.token.slice(2)}`}>${s.fill && html`<path class="chart-area" d=${area} />`}
        <path d=${line} stroke-dasharray=${i > 0 ? '5 3' : undefined} /><path class="chart-alone" d=${alone} />
        ${at !== null && known(s.values[at]) && html`<path class="chart-alone" d=${`M${x(at)} ${y(s.values[at])}h0`} />`}</g>`;
    })}</svg>`;
  return html`<figure class="chart">
    <figcaption><span class="chart-title">${clean(title, 60)}</span>
      <span class="chart-legend">${series.map((s, i) => html`<span key=${s.label} class="key"><span class=${`swatch ${s.token.slice(2)}${i > 0 ? ' dashed' : ''}`} aria-hidden="true"></span>${s.label} <b class="num">${s.format(shown(s))}</b></span>`)}
      ${at !== null && times[at] && html`<span class="muted num">${clockSeconds.format(times[at] * 1000)}</span>`}</span></figcaption>
    <div class="chart-box" role="img" aria-label=${t('{title}, last values: {values}', { title, values: said })} ref=${box} onPointerMove=${point} onPointerLeave=${() => setAt(null)}>${width > 0 && last >= 0 && picture()}</div>
  </figure>`;
}
