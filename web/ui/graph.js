// Module graph draws a topology on a canvas: the own node in the middle, one color and one shape for each organization, a ring for trust, dashed lines for relayed
// connections and a thick line for the path of the last call. It imports no other module of the console, and its first part works without a page.

import { forceSimulation, forceLink, forceManyBody, forceX, forceY, forceCollide } from './vendor/d3-force.js';

// A Mark is one thing in the picture: a node, an organization (a bubble), or the rest of an organization that is too large to be drawn whole. Nodes and links are those of
// GET /v1/topology.

/** FAINT is the number of marks above which the lines are faint, except those of the own and of the chosen node. */
export const FAINT = 150;
export const WHOLE = 1000; // nodes; above, organizations are bubbles
/** OPENED is the number of nodes of an open organization that are drawn; the others are one mark. */
export const OPENED = 400;

// A frame that moves the layout makes at most this many ticks, and begins none after FRAME_MS.
const TICKS_A_FRAME = 4;
const FRAME_MS = 1;
// A slice of a layout without animation; a page does not notice it.
const SLICE_MS = 8;
const ALPHA_MIN = 0.02;
const LABELS = 40;
const SHAPES = 8;
const PLAIN = SHAPES; // the tone of nodes without organization

/** work counts what pictures have done since the page was loaded: draws and layouts, the work of the last 600 frames in ms, and the longest piece of work. */
export const work = { draws: 0, layouts: 0, frames: [], longest: 0 };

function count(ms) {
  work.frames.push(ms);
  if (work.frames.length > 600) work.frames.shift();
  if (ms > work.longest) work.longest = ms;
}

// hash gives the same number for the same text, so that a node starts at the same place each time.
function hash(text) {
  let h = 2166136261;
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 16777619);
  return h >>> 0;
}

/**
 * digests returns two texts. The first changes with the marks and lines of a topology, which need a new layout; the second with what is drawn of them. Round-trip times and
 * times of observation are in neither: a poll that brings only these changes nothing.
 * @param {Map<string, string>} [trust] the relation of each organization: own or partner
 */
export function digests(topology, trust = new Map()) {
  const nodes = topology.nodes.map((n) => n.did + ' ' + (n.organization ?? '') + (n.self ? '*' : '')).sort();
  const links = topology.links.map((l) => (l.from < l.to ? l.from + ' ' + l.to : l.to + ' ' + l.from)).sort();
  const look = topology.nodes.map((n) => [n.did, n.name ?? '', n.reachable ? 1 : 0, n.agents ?? 0, trust.get(n.organization ?? '') ?? ''].join(' ')).sort();
  const relayed = topology.links.filter((l) => l.relay).map((l) => l.from + ' ' + l.to).sort();
  return [nodes.join('\n') + '\n\n' + links.join('\n'), look.join('\n') + '\n\n' + relayed.join('\n')];
}

/**
 * picture turns a topology into marks and lines. Up to WHOLE nodes, each is a mark; above, each organization is one, except the open ones. Two links between the same
 * nodes are one line, which is relayed if both are.
 */
export function picture(topology, { open = new Set(), trust = new Map() } = {}) {
  const bubbles = topology.nodes.length > WHOLE;
  const out = { marks: [], lines: [], byKey: new Map(), keyOf: new Map(), near: new Map(), bubbles };
  const add = (m) => {
    out.marks.push(m);
    out.byKey.set(m.key, m);
    out.near.set(m.key, new Set());
  };
  const self = topology.nodes.find((n) => n.self);
  const own = new Set();
  if (bubbles && self) for (const l of topology.links) if (l.from === self.did || l.to === self.did) own.add(l.from).add(l.to);
  const shown = new Map();
  // The nodes that are connected to the own one come first when an organization is too large to be drawn whole.
  const ordered = bubbles ? [...topology.nodes].sort((a, b) => Number(own.has(b.did)) - Number(own.has(a.did)) || (a.did < b.did ? -1 : 1)) : topology.nodes;
  for (const node of ordered) {
    if (out.keyOf.has(node.did)) continue;
    const organization = node.organization ?? '';
    const relation = trust.get(organization) ?? '';
    let kind = 'node';
    let key = node.did;
    if (bubbles && !node.self) {
      const drawn = shown.get(organization) ?? 0;
      if (!open.has(organization)) kind = 'bubble';
      else if (drawn >= OPENED) kind = 'rest';
      else shown.set(organization, drawn + 1);
      if (kind !== 'node') key = kind + ':' + organization;
    }
    out.keyOf.set(node.did, key);
    const known = out.byKey.get(key);
    if (known) {
      known.count++;
      known.agents += node.agents ?? 0;
      known.reachable ||= node.reachable ?? false;
      continue;
    }
    add({ key, kind, label: kind === 'node' ? node.name || short(node.did) : organization, organization, trust: relation, self: node.self ?? false, reachable: node.reachable ?? true,
      count: 1, agents: node.agents ?? 0, node: kind === 'node' ? node : null, tone: PLAIN, radius: 6, x: NaN, y: NaN, vx: 0, vy: 0 });
  }
  for (const m of out.marks) m.radius = m.kind !== 'node' ? Math.min(44, 10 + 1.1 * Math.sqrt(m.count)) : m.self ? 11 : Math.min(10, 6 + 0.6 * Math.sqrt(m.agents));
  const lines = new Map();
  for (const l of topology.links) {
    const a = out.keyOf.get(l.from), b = out.keyOf.get(l.to);
    if (a === undefined || b === undefined || a === b) continue;
    const key = a < b ? a + ' ' + b : b + ' ' + a;
    const known = lines.get(key);
    if (known) {
      known.count++;
      known.relayed &&= Boolean(l.relay);
      continue;
    }
    const line = { key, source: out.byKey.get(a), target: out.byKey.get(b), relayed: Boolean(l.relay), count: 1 };
    lines.set(key, line);
    out.lines.push(line);
    out.near.get(a)?.add(b);
    out.near.get(b)?.add(a);
  }
  return out;
}

/** short shortens a DID to what tells it from others at a glance. */
export function short(did) {
  const id = did.startsWith('did:key:') ? did.slice(8) : did;
  return id.length > 16 ? id.slice(0, 12) + '…' : id;
}

/**
 * place gives each mark a position: that of before if it had one, else one near a neighbor that has one, else one on a circle around the own node, beside others of its
 * organization.
 * @returns {boolean} true if at least half of the marks had positions
 */
export function place(p, positions) {
  let known = 0;
  const waiting = [];
  for (const m of p.marks) {
    m.fx = m.self ? 0 : null;
    m.fy = m.self ? 0 : null;
    const old = m.self ? { x: 0, y: 0 } : positions.get(m.key);
    if (!old) {
      waiting.push(m);
      continue;
    }
    known++;
    m.x = old.x;
    m.y = old.y;
  }
  const started = 2 * known >= p.marks.length && known > 1;
  // Each organization starts in a sector of its own.
  const inOrder = [...waiting].sort((a, b) => (a.organization < b.organization ? -1 : a.organization > b.organization ? 1 : hash(a.key) - hash(b.key)));
  const angles = new Map(inOrder.map((m, i) => [m.key, (2 * Math.PI * i) / inOrder.length]));
  const circle = (m, far) => {
    const angle = angles.get(m.key) ?? 0;
    const distance = far * (60 + 8 * Math.sqrt(p.marks.length)) * (0.8 + (hash(m.key) % 97) / 240);
    m.x = distance * Math.cos(angle);
    m.y = distance * Math.sin(angle);
  };
  // Marks without a neighbor of known position wait for those that get one now, so that a chain grows from its known end.
  for (let left = waiting, round = 0; left.length > 0; round++) {
    const next = [];
    for (const m of left) {
      const h = hash(m.key);
      let from = null;
      if (started || round > 0) for (const key of p.near.get(m.key) ?? []) {
        const n = p.byKey.get(key);
        if (n && !Number.isNaN(n.x) && !n.self) { from = n; break; }
      }
      if (from) {
        const angle = (h % 628) / 100;
        m.x = from.x + 30 * Math.cos(angle);
        m.y = from.y + 30 * Math.sin(angle);
      } else if (round === 0 && !started && !p.near.get(m.key)?.size && waiting.length > 1) {
        circle(m, 1.5);
      } else if (round > 0 || (!started && nearSelf(p, m))) {
        circle(m, 1);
      } else {
        next.push(m);
      }
    }
    if (round > 0 && next.length === left.length) break;
    left = next;
  }
  for (const m of p.marks) if (Number.isNaN(m.x)) circle(m, 1.2);
  return started;
}

function nearSelf(p, m) {
  for (const key of p.near.get(m.key) ?? []) if (p.byKey.get(key)?.self) return true;
  return false;
}

/** Grid finds the mark at a point. It is built of the positions of one moment. */
export class Grid {
  constructor(marks, size = 48) {
    this.size = size;
    this.cells = new Map();
    for (const m of marks) {
      const key = Math.floor(m.x / size) + ',' + Math.floor(m.y / size);
      const cell = this.cells.get(key);
      if (cell) cell.push(m);
      else this.cells.set(key, [m]);
    }
  }

  /**
   * at returns the nearest mark whose edge is within reach of a point, in the units of the layout, or null.
   */
  at(x, y, reach, largest = 44) {
    const far = Math.ceil((reach + largest) / this.size);
    const cx = Math.floor(x / this.size), cy = Math.floor(y / this.size);
    let best = null, least = reach;
    for (let i = cx - far; i <= cx + far; i++) for (let j = cy - far; j <= cy + far; j++) for (const m of this.cells.get(i + ',' + j) ?? []) {
      const d = Math.hypot(m.x - x, m.y - y) - m.radius;
      if (d <= least) {
        best = m;
        least = d;
      }
    }
    return best;
  }
}

/** toward returns the mark that an arrow key leads to from another one: near, and in the direction (dx, dy). It returns null if there is none. */
export function toward(marks, from, dx, dy) {
  let best = null, least = Infinity;
  for (const m of marks) {
    if (m === from) continue;
    const x = m.x - from.x, y = m.y - from.y;
    const d = Math.hypot(x, y) || 1;
    const cos = (x * dx + y * dy) / d;
    if (cos < 0.5) continue;
    const cost = d * (1 + 3 * (1 - cos));
    if (cost < least) {
      best = m;
      least = cost;
    }
  }
  return best;
}

/**
 * layout makes a stopped simulation of a picture. The caller ticks it.
 * @param {number} aspect width by height of the canvas
 */
export function layout(p, aspect = 1) {
  work.layouts++;
  const wide = Math.max(0.4, Math.min(2.5, aspect));
  const n = p.marks.length;
  const length = n <= 30 ? 90 : 42;
  const charge = forceManyBody().strength((m) => (m.kind === 'node' ? -90 : -90 - 12 * m.radius)).theta(n > 200 ? 1.1 : 0.9).distanceMax(n > 200 ? 350 : 900);
  const simulation = forceSimulation(p.marks)
    .stop()
    .alphaMin(ALPHA_MIN)
    .alphaDecay(0.035)
    .velocityDecay(0.45)
    .force('charge', charge)
    .force('link', forceLink(p.lines).distance((l) => length + l.source.radius + l.target.radius))
    .force('x', forceX(0).strength(0.06 / wide))
    .force('y', forceY(0).strength(0.06 * wide));
  // Many small marks may overlap; few of them, and bubbles, may not. The force costs as much as the charge.
  if (n <= FAINT || p.bubbles) simulation.force('collide', forceCollide((m) => (n <= FAINT || m.kind !== 'node' ? m.radius + 7 : 2)).strength(0.6));
  return simulation;
}

// Colors that differ for all common kinds of color blindness, each with a contrast of at least 3:1 to the background. The last one is for nodes without organization.
const LIGHT = ['#0067a8', '#b34700', '#00734f', '#a3396f', '#7a5a00', '#5b3fa0', '#00707a', '#8c2f2f', '#666666'];
const DARK = ['#5db8f0', '#f0a030', '#35c796', '#e894c4', '#efe05a', '#b7a5ff', '#5fd3dc', '#ff9a8a', '#a8a8a8'];

// Positions stay while the page is open, so that a picture that is shown again looks as before.
const remembered = new Map();

function remember(marks) {
  if (remembered.size > 10000) remembered.clear();
  for (const m of marks) remembered.set(m.key, { x: m.x, y: m.y });
}

/** Graph is a picture on one canvas. It draws only when something has changed, and holds no timer while nothing moves. */
export class Graph {
  /**
   * The size of the canvas follows that of its parent element.
   * onChoose is called when another mark is chosen, onOpen when a node is opened by Enter or a double click
   */
  constructor(canvas, options = {}) {
    this.canvas = canvas;
    this.options = options;
    this.context = canvas.getContext('2d');
    this.end = new AbortController();
    this.open = new Set();
    this.colors = new Map();
    this.trust = new Map();
    this.topology = { nodes: [], links: [] };
    this.picture = picture(this.topology);
    this.simulation = null;
    this.grid = null;
    this.chosen = null;
    this.hovered = null;
    this.path = [];
    this.shape = '';
    this.look = '';
    this.width = 0;
    this.height = 0;
    this.ratio = 1;
    // The view: a point (x, y) of the layout is at (x·scale + left, y·scale + top) of the canvas, in CSS pixels.
    this.scale = 1;
    this.left = 0;
    this.top = 0;
    this.fitted = true; // the view follows the layout until the first pan or zoom
    this.waiting = 0;
    this.slice = 0;
    this.dark = false;
    this.ink = '#000000';
    this.paper = '#ffffff';
    this.still = matchMedia('(prefers-reduced-motion: reduce)');
    this.#listen();
    this.#resize();
  }

  /** update shows a topology. It does nothing if that is drawn already. */
  update(topology, { trust = this.trust } = {}) {
    const [shape, look] = digests(topology, trust);
    const moved = shape !== this.shape;
    if (!moved && look === this.look) return false;
    this.shape = shape;
    this.look = look;
    this.topology = topology;
    this.trust = trust;
    this.#rebuild(moved);
    return true;
  }

  /** choose marks a node or a bubble by its key, or nothing for null. */
  choose(key) {
    const found = key === null ? null : this.picture.byKey.get(this.picture.keyOf.get(key) ?? key) ?? null;
    const next = found?.key ?? null;
    if (next === this.chosen) return;
    this.chosen = next;
    this.options.onChoose?.(found);
    if (found) this.#reveal(found);
    this.invalidate();
  }

  showPath(dids) {
    if (dids.join(' ') === this.path.join(' ')) return;
    this.path = dids;
    this.invalidate();
  }

  expand(organization, on) {
    if (this.open.has(organization) === on) return;
    if (on) this.open.add(organization);
    else this.open.delete(organization);
    // The nodes of a bubble start where it was.
    const bubble = this.picture.byKey.get('bubble:' + organization);
    if (on && bubble) for (const n of this.topology.nodes) if ((n.organization ?? '') === organization && !remembered.has(n.did)) {
      const h = hash(n.did);
      const angle = (h % 628) / 100, far = 5 + (h % bubble.radius) * 2;
      remembered.set(n.did, { x: bubble.x + far * Math.cos(angle), y: bubble.y + far * Math.sin(angle) });
    }
    this.#rebuild(true);
  }

  /** zoom changes the scale around a point of the canvas in CSS pixels, or around its middle. */
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const scale = Math.max(0.05, Math.min(8, this.scale * factor));
    this.left = x - ((x - this.left) * scale) / this.scale;
    this.top = y - ((y - this.top) * scale) / this.scale;
    this.scale = scale;
    this.fitted = false;
    this.invalidate();
  }

  pan(dx, dy) {
    this.left += dx;
    this.top += dy;
    this.fitted = false;
    this.invalidate();
  }

  fit() {
    this.fitted = true;
    this.invalidate();
  }

  get settled() {
    return !this.simulation && this.waiting === 0 && this.slice === 0;
  }

  destroy() {
    this.end.abort();
    cancelAnimationFrame(this.waiting);
    clearTimeout(this.slice);
    this.simulation = null;
    remember(this.picture.marks);
  }

  invalidate() {
    if (this.waiting || this.slice || this.end.signal.aborted) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.frame();
    });
  }

  /** frame moves the layout if it is not settled, and draws. Its work is counted. */
  frame() {
    const begin = performance.now();
    const s = this.simulation;
    if (s && !this.slice) {
      for (let i = 0; i < TICKS_A_FRAME && s.alpha() >= ALPHA_MIN; i++) {
        s.tick();
        if (performance.now() - begin > FRAME_MS) break;
      }
      this.grid = null;
      if (s.alpha() < ALPHA_MIN) this.#settle();
    }
    this.draw();
    count(performance.now() - begin);
    if (this.simulation && !this.slice) this.invalidate();
  }

  #settle() {
    this.simulation = null;
    this.grid = null;
    remember(this.picture.marks);
  }

  #rebuild(moved) {
    const before = this.picture;
    remember(before.marks);
    const p = picture(this.topology, { open: this.open, trust: this.trust });
    const started = place(p, remembered);
    this.picture = p;
    this.grid = null;
    this.hovered = this.hovered ? p.byKey.get(this.hovered.key) ?? null : null;
    this.#color();
    if (this.chosen !== null && !p.byKey.has(this.chosen)) {
      this.chosen = null;
      this.options.onChoose?.(null);
    }
    if (moved) {
      this.simulation = layout(p, this.width / (this.height || 1)).alpha(started ? 0.25 : 1);
      clearTimeout(this.slice);
      this.slice = 0;
      if (this.still.matches) this.#atOnce();
    } else if (this.simulation) {
      this.simulation = layout(p, this.width / (this.height || 1)).alpha(this.simulation.alpha());
    }
    this.invalidate();
  }

  // atOnce moves the layout to its end without drawing, in slices that do not block the page.
  #atOnce() {
    const begin = performance.now();
    const s = this.simulation;
    this.slice = 0;
    if (!s) return;
    while (s.alpha() >= ALPHA_MIN) {
      if (performance.now() - begin > SLICE_MS) {
        this.slice = window.setTimeout(() => this.#atOnce(), 0);
        return;
      }
      s.tick();
    }
    this.#settle();
    this.invalidate();
  }

  // The own organization has the first color; others get theirs in the order of their names when they are first seen, and keep it.
  #color() {
    const own = this.topology.nodes.find((n) => n.self)?.organization;
    if (own && !this.colors.has(own)) this.colors.set(own, 0);
    const names = [...new Set(this.picture.marks.map((m) => m.organization))].filter((o) => o && !this.colors.has(o)).sort();
    for (const name of names) this.colors.set(name, this.colors.size + (own ? 0 : 1));
    for (const m of this.picture.marks) {
      const i = this.colors.get(m.organization) ?? 0;
      m.tone = !m.organization ? PLAIN : i === 0 ? 0 : 1 + ((i - 1) % (SHAPES - 1));
    }
  }

  #reveal(m) {
    const x = m.x * this.scale + this.left, y = m.y * this.scale + this.top;
    const edge = 24;
    const dx = x < edge ? edge - x : x > this.width - edge ? this.width - edge - x : 0;
    const dy = y < edge ? edge - y : y > this.height - edge ? this.height - edge - y : 0;
    if ((dx || dy) && !this.fitted) this.pan(dx, dy);
  }

  // me stays in the middle of a fitted view.
  #fitView() {
    let wide = 40, high = 40;
    for (const m of this.picture.marks) {
      wide = Math.max(wide, Math.abs(m.x) + m.radius);
      high = Math.max(high, Math.abs(m.y) + m.radius);
    }
    this.scale = Math.min((this.width / 2 - 34) / wide, (this.height / 2 - 26) / high, 1.8);
    if (!(this.scale > 0.02)) this.scale = 0.02;
    this.left = this.width / 2;
    this.top = this.height / 2;
  }

  draw() {
    const c = this.context, p = this.picture;
    if (this.width === 0 || this.height === 0) return;
    work.draws++;
    if (this.fitted) this.#fitView();
    const { scale, left, top, width, height } = this;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    c.lineCap = 'round';
    this.#lines(c, p);
    const palette = this.dark ? DARK : LIGHT;
    const size = Math.max(0.45, Math.min(1.5, Math.sqrt(scale)));
    const visible = [];
    for (const m of p.marks) {
      const x = m.x * scale + left, y = m.y * scale + top, r = m.radius * size;
      if (x >= -r && y >= -r && x <= width + r && y <= height + r) visible.push(m);
    }
    // Bubbles are below nodes, and the own node is above all.
    this.#shapes(c, visible.filter((m) => m.kind !== 'node'), size, palette);
    this.#shapes(c, visible.filter((m) => m.kind === 'node' && !m.self), size, palette);
    this.#shapes(c, visible.filter((m) => m.self), size, palette);
    this.#rings(c, visible, size, palette);
    this.#labels(c, visible, size);
  }

  #shapes(c, marks, size, palette) {
    const { scale, left, top } = this;
    const groups = Array.from({ length: 2 * (SHAPES + 1) }, () => []);
    for (const m of marks) groups[2 * m.tone + (m.reachable ? 0 : 1)].push(m);
    for (let i = 0; i < groups.length; i++) {
      if (groups[i].length === 0) continue;
      const tone = i >> 1, reachable = i % 2 === 0;
      c.beginPath();
      for (const m of groups[i]) outline(c, m.kind === 'node' ? tone : PLAIN, m.x * scale + left, m.y * scale + top, m.radius * size);
      // A node that does not answer is hollow.
      c.fillStyle = reachable ? palette[tone] : this.paper;
      c.strokeStyle = reachable ? this.paper : palette[tone];
      c.lineWidth = reachable ? 1 : 2;
      c.fill();
      c.stroke();
    }
  }

  #lines(c, p) {
    const { scale, left, top, width, height } = this;
    const faint = p.marks.length > FAINT;
    const classes = [[], [], [], []]; // plain, plain and relayed, strong, strong and relayed
    for (const l of p.lines) {
      const ax = l.source.x * scale + left, bx = l.target.x * scale + left;
      if ((ax < 0 && bx < 0) || (ax > width && bx > width)) continue;
      const ay = l.source.y * scale + top, by = l.target.y * scale + top;
      if ((ay < 0 && by < 0) || (ay > height && by > height)) continue;
      const strong = l.source.key === this.chosen || l.target.key === this.chosen || (this.chosen === null && (l.source.self || l.target.self));
      classes[(strong ? 2 : 0) + (l.relayed ? 1 : 0)].push(l);
    }
    c.strokeStyle = this.ink;
    for (let i = 0; i < classes.length; i++) {
      if (classes[i].length === 0) continue;
      c.globalAlpha = i >= 2 ? 0.8 : faint ? 0.1 : this.chosen === null ? 0.4 : 0.22;
      c.lineWidth = i >= 2 ? 1.6 : 1;
      c.setLineDash(i % 2 === 1 ? [5, 5] : []);
      c.beginPath();
      for (const l of classes[i]) {
        c.moveTo(l.source.x * scale + left, l.source.y * scale + top);
        c.lineTo(l.target.x * scale + left, l.target.y * scale + top);
      }
      c.stroke();
    }
    c.setLineDash([]);
    c.globalAlpha = 1;
    if (this.path.length > 1) {
      c.lineWidth = 5;
      c.strokeStyle = (this.dark ? DARK : LIGHT)[1];
      c.beginPath();
      let begun = false;
      for (const did of this.path) {
        const m = p.byKey.get(p.keyOf.get(did) ?? '');
        if (!m) continue;
        if (begun) c.lineTo(m.x * scale + left, m.y * scale + top);
        else c.moveTo(m.x * scale + left, m.y * scale + top);
        begun = true;
      }
      c.stroke();
    }
  }

  // A ring is a member of the own organization, a double one a partner; the own and the chosen node have one of their own.
  #rings(c, visible, size, palette) {
    const { scale, left, top } = this;
    c.lineWidth = 1.5;
    for (const m of visible) {
      if (m.trust !== 'own' && m.trust !== 'partner') continue;
      c.strokeStyle = palette[m.tone];
      c.beginPath();
      ring(c, m.x * scale + left, m.y * scale + top, m.radius * size + 3);
      if (m.trust === 'partner') ring(c, m.x * scale + left, m.y * scale + top, m.radius * size + 6);
      c.stroke();
    }
    c.strokeStyle = this.ink;
    for (const m of visible) {
      const chosen = m.key === this.chosen;
      if (!m.self && !chosen) continue;
      c.lineWidth = chosen ? 3 : 2;
      c.beginPath();
      ring(c, m.x * scale + left, m.y * scale + top, m.radius * size + (chosen ? 10 : 7));
      c.stroke();
    }
  }

  // Texts are slow: only those of the own, the chosen and the hovered node, of their neighbors, and of all if they are few.
  #labels(c, visible, size) {
    const { scale, left, top } = this;
    const around = this.chosen === null ? null : this.picture.near.get(this.chosen);
    const all = visible.length <= LABELS;
    const chosen = visible.filter((m) => m.self || m.key === this.chosen || m === this.hovered);
    const others = visible.filter((m) => !chosen.includes(m) && (all || m.kind !== 'node' || around?.has(m.key)));
    c.font = '12px system-ui, sans-serif';
    c.textAlign = 'center';
    c.textBaseline = 'top';
    c.lineWidth = 3;
    c.lineJoin = 'round';
    c.strokeStyle = this.paper;
    c.fillStyle = this.ink;
    for (const m of chosen.concat(others.slice(0, LABELS))) {
      const text = m.label.length > 24 ? m.label.slice(0, 23) + '…' : m.label;
      const x = m.x * scale + left, y = m.y * scale + top + m.radius * size + (m.self || m.key === this.chosen ? 11 : 5);
      c.strokeText(text, x, y);
      c.fillText(text, x, y);
      if (m.kind === 'node') continue;
      c.textBaseline = 'middle';
      c.fillStyle = this.paper;
      c.fillText(String(m.count), x, m.y * scale + top);
      c.fillStyle = this.ink;
      c.textBaseline = 'top';
    }
  }

  /** at returns the mark at a point of the canvas in CSS pixels, or null. */
  at(x, y, reach = 8) {
    this.grid ??= new Grid(this.picture.marks);
    return this.grid.at((x - this.left) / this.scale, (y - this.top) / this.scale, reach / this.scale);
  }

  // A click or Enter on a bubble opens it; on a node it chooses it, and Enter or a double click opens it.
  #act(m, open) {
    if (m?.kind === 'bubble') {
      this.choose(m.key);
      this.expand(m.organization, true);
      return;
    }
    this.choose(m?.key ?? null);
    if (m && open) this.options.onOpen?.(m);
  }

  #listen() {
    const { canvas } = this;
    const on = (target, type, fn, more = {}) =>
      target.addEventListener(type, fn, { signal: this.end.signal, ...more });
    const fingers = new Map();
    let moved = 0;
    const point = (e) => {
      const box = canvas.getBoundingClientRect();
      return { x: e.clientX - box.left, y: e.clientY - box.top };
    };
    on(canvas, 'pointerdown', (e) => {
      if (e.button !== 0) return;
      if (fingers.size === 0) moved = 0;
      fingers.set(e.pointerId, point(e));
      canvas.setPointerCapture(e.pointerId);
    });
    on(canvas, 'pointermove', (e) => {
      const now = point(e), old = fingers.get(e.pointerId);
      if (!old) {
        this.#hover(this.at(now.x, now.y));
        return;
      }
      if (fingers.size === 1) {
        moved += Math.hypot(now.x - old.x, now.y - old.y);
        if (moved > 4) this.pan(now.x - old.x, now.y - old.y);
      } else if (fingers.size === 2) {
        const [a, b] = [...fingers].map(([id, p]) => (id === e.pointerId ? null : p)).filter((p) => p !== null).concat([old]);
        const before = Math.hypot(a.x - b.x, a.y - b.y), after = Math.hypot(a.x - now.x, a.y - now.y);
        if (before > 0) this.zoom(after / before, (a.x + now.x) / 2, (a.y + now.y) / 2);
        this.pan((now.x - old.x) / 2, (now.y - old.y) / 2);
        moved = 100;
      }
      fingers.set(e.pointerId, now);
    });
    const up = (e) => {
      if (!fingers.delete(e.pointerId) || fingers.size > 0 || e.type !== 'pointerup') return;
      const at = point(e);
      if (moved <= 4) this.#act(this.at(at.x, at.y, e.pointerType === 'touch' ? 16 : 8), false);
    };
    on(canvas, 'pointerup', up);
    on(canvas, 'pointercancel', up);
    on(canvas, 'pointerleave', () => this.#hover(null));
    on(canvas, 'dblclick', (e) => {
      const at = point(e), m = this.at(at.x, at.y);
      if (m?.kind === 'node') this.options.onOpen?.(m);
    });
    // The wheel alone scrolls the page, unless the picture has the focus.
    on(canvas, 'wheel', (e) => {
      if (!e.ctrlKey && !e.metaKey && document.activeElement !== canvas) return;
      e.preventDefault();
      const at = point(e);
      this.zoom(Math.exp(-e.deltaY * (e.ctrlKey ? 0.01 : 0.002)), at.x, at.y);
    }, { passive: false });
    on(canvas, 'keydown', (e) => this.#key(e));
    const size = new ResizeObserver(() => this.#resize());
    size.observe(canvas.parentElement);
    const theme = new MutationObserver(() => this.#theme());
    theme.observe(document.documentElement, { attributes: true });
    this.end.signal.addEventListener('abort', () => {
      size.disconnect();
      theme.disconnect();
    });
    on(matchMedia('(prefers-color-scheme: dark)'), 'change', () => this.#theme());
    on(window, 'resize', () => this.#resize()); // the device pixel ratio may have changed
  }

  #hover(m) {
    if (m === this.hovered) return;
    this.hovered = m;
    this.canvas.classList.toggle('over', m !== null);
    this.invalidate();
  }

  #key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const p = this.picture;
    const now = this.chosen === null ? null : p.byKey.get(this.chosen) ?? null;
    if (arrows[e.key]) {
      const start = p.marks.find((m) => m.self) ?? p.marks[0];
      const next = now ? toward(p.marks, now, arrows[e.key][0], arrows[e.key][1]) : start;
      if (next) this.choose(next.key);
    } else if (e.key === 'Enter' || e.key === ' ') {
      if (now) this.#act(now, true);
    } else if (e.key === 'Escape') {
      if (now && this.open.has(now.organization)) this.expand(now.organization, false);
      this.choose(null);
    } else if (e.key === '+' || e.key === '=') {
      this.zoom(1.25);
    } else if (e.key === '-') {
      this.zoom(0.8);
    } else if (e.key === '0') {
      this.fit();
    } else {
      return;
    }
    e.preventDefault();
  }

  #resize() {
    const parent = this.canvas.parentElement;
    const width = parent.clientWidth, height = parent.clientHeight, ratio = window.devicePixelRatio || 1;
    if (width === this.width && height === this.height && ratio === this.ratio) return;
    Object.assign(this, { width, height, ratio });
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.#theme();
    // Setting a size clears a canvas: without a draw in this frame it would flash.
    this.draw();
  }

  #theme() {
    const style = getComputedStyle(this.canvas);
    this.ink = style.color;
    this.paper = /rgba\(.*, 0\)|transparent/.test(style.backgroundColor) ? getComputedStyle(document.body).backgroundColor : style.backgroundColor;
    this.dark = bright(this.ink);
    this.invalidate();
  }
}

// bright is true for the color of texts on a dark page.
function bright(color) {
  const [r = 0, g = 0, b = 0] = (color.match(/[\d.]+/g) ?? []).map(Number);
  const full = /^color\(/.test(color) ? 1 : 255;
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / full > 0.5;
}

function ring(c, x, y, r) {
  c.moveTo(x + r, y);
  c.arc(x, y, r, 0, 2 * Math.PI);
}

// outline adds the shape of an organization to the path: disc, square, triangle, diamond, pentagon, hexagon, triangle on its tip, plus. The tone PLAIN is a disc, too.
function outline(c, tone, x, y, r) {
  switch (tone) {
    case 1: return c.rect(x - 0.85 * r, y - 0.85 * r, 1.7 * r, 1.7 * r);
    case 2: return polygon(c, x, y, 1.2 * r, 3, -Math.PI / 2);
    case 3: return polygon(c, x, y, 1.15 * r, 4, 0);
    case 4: return polygon(c, x, y, 1.1 * r, 5, -Math.PI / 2);
    case 5: return polygon(c, x, y, 1.05 * r, 6, 0);
    case 6: return polygon(c, x, y, 1.2 * r, 3, Math.PI / 2);
    case 7: return plus(c, x, y, r);
    default: return ring(c, x, y, r);
  }
}

function polygon(c, x, y, r, n, turn) {
  c.moveTo(x + r * Math.cos(turn), y + r * Math.sin(turn));
  for (let i = 1; i < n; i++) c.lineTo(x + r * Math.cos(turn + (2 * Math.PI * i) / n), y + r * Math.sin(turn + (2 * Math.PI * i) / n));
  c.closePath();
}

function plus(c, x, y, r) {
  const a = 0.4 * r;
  c.rect(x - r, y - a, 2 * r, 2 * a);
  c.rect(x - a, y - r, 2 * a, 2 * r);
}

/**
 * legendShape draws the shape and color of an organization on a small canvas of a legend.
 * @param {number} tone as of a mark
 */
export function legendShape(canvas, tone) {
  const ratio = window.devicePixelRatio || 1, size = 16;
  canvas.width = canvas.height = Math.round(size * ratio);
  const c = canvas.getContext('2d');
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.fillStyle = (bright(getComputedStyle(canvas).color) ? DARK : LIGHT)[tone];
  c.beginPath();
  outline(c, tone, size / 2, size / 2, 5.5);
  c.fill();
}
