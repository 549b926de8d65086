// Charts over time. The library is loaded with the first chart only.
import { html, useEffect, useLayoutEffect, useRef, useState } from './vendor/preact.js';
import { color, scheme } from './ui.js';
import { clean, t } from './words.js';

let library = null;

function loadLibrary() {
  library ??= Promise.all([
    import('./vendor/uplot.js'),
    new Promise((resolve) => {
      const sheet = document.createElement('link');
      sheet.rel = 'stylesheet';
      sheet.href = 'vendor/uPlot.min.css';
      sheet.onload = sheet.onerror = resolve;
      document.head.append(sheet);
    }),
  ]).then(([module]) => module.default);
  library.catch(() => (library = null)); // the next chart tries again
  return library;
}

// A value between two unknown ones is no line: it is drawn as a point.
function alone(u, series) {
  const values = u.data[series];
  const none = (v) => v === null || v === undefined;
  const found = [];
  for (let i = 0; i < values.length; i++) if (!none(values[i]) && none(values[i - 1]) && none(values[i + 1])) found.push(i);
  return found;
}

const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });
const clockSeconds = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });

/**
 * Chart draws series over time. times are seconds since 1970; series are {label, values, token: the color, format(value), fill}.
 * The legend has the values at the cursor, else the last ones.
 */
export function Chart({ title, times, series, height = 120 }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [at, setAt] = useState(null);
  const theme = scheme.value;
  const draw = useRef({ times, series });
  draw.current = { times, series };

  useEffect(() => {
    let ended = false;
    let watch;
    loadLibrary().then((uPlot) => {
      if (ended || !box.current) return;
      const line = color('--line');
      const muted = color('--muted');
      const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif' };
      const { times: x, series: ys } = draw.current;
      plot.current = new uPlot({
        width: box.current.clientWidth,
        height,
        padding: [8, 16, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
        hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)] },
        scales: { y: { range: (u, min, max) => [0, max > 0 ? max * 1.12 : 1] } },
        axes: [
          { ...axis, grid: { show: false }, size: 22, space: 70, values: (u, splits) => splits.map((s) => clock.format(s * 1000)) },
          { ...axis, size: 56, space: 28, values: (u, splits) => splits.map((v) => ys[0].format(v)) },
        ],
        series: [{}, ...ys.map((s, i) => ({
          stroke: color(s.token), width: 1.6, points: { show: true, size: 4, fill: color(s.token), filter: alone }, spanGaps: false, dash: i > 0 ? [5, 3] : undefined,
          fill: s.fill ? color(s.token).replace(/^rgb\((.*)\)$/, 'rgba($1, 0.09)') : undefined,
        }))],
      }, [x, ...ys.map((s) => s.values)], box.current);
      watch = new ResizeObserver(() => {
        const width = box.current?.clientWidth;
        if (width && plot.current && width !== plot.current.width) plot.current.setSize({ width, height });
      });
      watch.observe(box.current);
    }, () => {}); // the legend has the values
    return () => {
      ended = true;
      watch?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [theme, height, series.length]);

  useLayoutEffect(() => {
    plot.current?.setData([times, ...series.map((s) => s.values)]);
  }, [times, ...series.map((s) => s.values)]);

  const last = (values) => values.findLast((v) => v !== null && v !== undefined);
  const shown = (s) => (at === null ? last(s.values) : s.values[at]);
  const said = series.map((s) => `${s.label} ${s.format(last(s.values))}`).join(', ');
  return html`<figure class="chart">
    <figcaption><span class="chart-title">${clean(title, 60)}</span>
      <span class="chart-legend">${series.map((s, i) => html`<span key=${s.label} class=${`key key-${s.token.slice(2)}`}><span class=${i > 0 ? 'swatch dashed' : 'swatch'} aria-hidden="true"></span>${s.label} <b class="num">${s.format(shown(s))}</b></span>`)}
      ${at !== null && times[at] && html`<span class="muted num">${clockSeconds.format(times[at] * 1000)}</span>`}</span></figcaption>
    <div class="chart-box" role="img" aria-label=${t('{title}, last values: {values}', { title, values: said })} ref=${box}></div>
  </figure>`;
}
