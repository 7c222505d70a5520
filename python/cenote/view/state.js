// state.js: unpacks the data of the page, and holds what the page shows. It comes first among the scripts of `cenote view`; the others read `state`.

// --- small tools

const $ = id => document.getElementById(id);
const TYPES = { I: Uint32Array, H: Uint16Array, d: Float64Array, f: Float32Array };
const FOR_EVER = 0xFFFFFFFF;
const GAP = 2 << 20;  // addresses with a smaller gap between them are one span

/** The numbers of a column that html_page.py packed. */
function unpack(kind, text) {
  if (text === null || text === undefined) return null;
  return new TYPES[kind](Uint8Array.from(atob(text), letter => letter.charCodeAt(0)).buffer);
}

function size(bytes) {
  if (!bytes) return "0 B";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const unit = Math.min(4, Math.floor(Math.log2(Math.abs(bytes)) / 10));
  const value = bytes / 1024 ** unit;
  return (unit ? value.toFixed(Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0) : value) + " " + units[unit];
}

const count = number => number.toLocaleString("en-US");
const hex = address => "0x" + address.toString(16);

function duration(us) {
  if (Math.abs(us) >= 1e6) return (us / 1e6).toFixed(us < 1e7 ? 3 : 2) + " s";
  return us >= 1e3 ? (us / 1e3).toFixed(2) + " ms" : us.toFixed(1) + " µs";
}

/** The index of the last of the ascending `values` that is at most `x`; 0 if there is none. */
function lastUpTo(values, x) {
  let low = 0, high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= x) low = middle; else high = middle - 1;
  }
  return low;
}

/** A new element. Names are inserted as text, never as HTML. */
function make(tag, properties = {}, ...inside) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...inside);
  return element;
}

const swatch = color => { const box = make("i"); box.style.background = color; return box; };

// --- colours: they differ in hue and in lightness, so that readers who see few colours can tell neighbours apart

const COLORS = ["#2f6fde", "#f0a818", "#0fa39a", "#e2557b", "#7bb661", "#8a5cd6", "#f47b42", "#5cc3ee", "#a0522d", "#c9b037", "#5d6f9e"];
const REST = "#98a3a6";
const LINES = { requested: "--ink", allocated: "--accent", reserved: "--alias" };

const themed = new Map();  // colours of the theme, kept because a paint needs them thousands of times

function css(name) {
  if (!themed.has(name)) themed.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return themed.get(name);
}

/** The colour of the name at this index of its division. */
function colorOf(rank) {
  const last = groupNames().length - 1;
  return rank >= COLORS.length ? REST : last > COLORS.length - 1 && rank >= last ? REST : COLORS[rank];
}

// --- views: one for each file and device

function open(raw) {
  const view = { ...raw, moments: unpack("I", raw.moments), times: unpack("d", raw.times), lines: {}, stacks: {} };
  for (const [name, text] of Object.entries(raw.series)) view.lines[name] = unpack("d", text);
  for (const [name, stack] of Object.entries(raw.stacks)) view.stacks[name] = { groups: stack.groups, values: unpack("f", stack.values) };
  const blocks = raw.blocks;
  view.blocks = { ...blocks, size: unpack("d", blocks.size), born: unpack("I", blocks.born), gone: unpack("I", blocks.gone),
    address: unpack("d", blocks.address), groups: {} };
  for (const [name, text] of Object.entries(blocks.groups)) view.blocks.groups[name] = unpack("H", text);
  view.order = Uint32Array.from(view.blocks.size.keys());
  if (view.blocks.address) view.order.sort((a, b) => view.blocks.address[a] - view.blocks.address[b]);
  view.divisions = Object.keys(raw.names);
  view.spans = view.blocks.address ? spansOf(view) : [];
  view.extent = view.spans.reduce((sum, span) => sum + span.bytes, 0);
  return view;
}

/** The spans of addresses that were ever in use: [{base, bytes, offset}]. A span begins where the one before ends, in offsets: gaps are not drawn. */
function spansOf(view) {
  const pieces = view.ranges.map(range => [range[0], range[0] + range[1]]);
  for (const page of view.moment?.pages ?? []) for (const place of page[6]) pieces.push([place, place + page[1]]);
  for (const i of view.order) pieces.push([view.blocks.address[i], view.blocks.address[i] + view.blocks.size[i]]);
  pieces.sort((a, b) => a[0] - b[0]);
  const spans = [];
  let offset = 0;
  for (const [first, end] of pieces) {
    const last = spans[spans.length - 1];
    if (last && first - (last.base + last.bytes) <= GAP) {
      last.bytes = Math.max(last.bytes, end - last.base);
    } else {
      spans.push({ base: first, bytes: end - first });
    }
  }
  for (const span of spans) { span.offset = offset; offset += span.bytes; }
  return spans;
}

/** The offset at which an address is drawn, in bytes. */
function offsetOf(view, address) {
  let low = 0, high = view.spans.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (view.spans[middle].base <= address) low = middle; else high = middle - 1;
  }
  return view.spans[low].offset + address - view.spans[low].base;
}

function addressOf(view, offset) {
  const span = view.spans[lastUpTo(view.spans.map(each => each.offset), offset)];
  return span.base + offset - span.offset;
}

// --- state

const views = DATA.views.map(open);
const state = { view: views[0], division: "", axis: "record", from: 0, to: 1, moment: 0, group: -1, block: -1, page: -1, zoom: 1,
  sort: "size", down: true, hover: null, rows: "groups", opened: null };

const groupNames = () => state.view.stacks[state.division]?.groups ?? state.view.names[state.division].slice(0, COLORS.length + 1);
const xs = () => state.axis === "time" ? state.view.times : state.view.moments;
const rankOf = block => state.view.blocks.groups[state.division][block];
const groupOf = block => Math.min(rankOf(block), groupNames().length - 1);
const nameOf = (division, block) => state.view.names[division][state.view.blocks.groups[division][block]];
const unitLine = () => state.view.lines[state.view.unit];

function isLive(block) {
  return state.view.blocks.born[block] <= state.moment && state.moment < state.view.blocks.gone[block];
}

/** Live blocks in the order of their addresses. Looking at the few ten thousand blocks of a view takes a fraction of a frame. */
function liveBlocks() {
  const { order, blocks: { born, gone } } = state.view, live = [];
  for (const i of order) if (born[i] <= state.moment && state.moment < gone[i]) live.push(i);
  return live;
}

function choose(view) {
  state.view = view;
  state.division = view.divisions.includes(state.division) ? state.division : preferred(view);
  const first = view.marks.at(-1)?.[0] ?? view.peak;  // where memory ran out, or the peak
  Object.assign(state, { opened: null, moment: view.records ? first : 0, group: -1, block: -1, page: -1, zoom: 1, hover: null });
  if (!view.records) state.axis = "time";
  showAll();
  showFrame();
}

/** The division to show first: that of a leak; a kind or a tag says more than a stream, and a stream more than a size. */
const preferred = view => [view.grows, "kind", "tag", "line", "stream"].find(name => view.divisions.includes(name)) ?? view.divisions[0];

function setMoment(moment) {
  state.moment = Math.max(0, Math.min(state.view.records, Math.round(moment)));
  if (state.block >= 0 && !isLive(state.block)) state.block = -1;
  paint();
}

function setRange(from, to) {
  const all = xs(), first = all[0], last = all[all.length - 1], width = Math.min(to - from, last - first);
  state.from = Math.max(first, Math.min(from, last - width));
  state.to = state.from + Math.max(width, (last - first) / 1e6, 1e-9);
  paint();
}

const showAll = () => setRange(xs()[0], xs()[xs().length - 1]);

function zoom(factor, at = (state.from + state.to) / 2) {
  setRange(at - (at - state.from) * factor, at + (state.to - at) * factor);
}

const xOfMoment = moment => xs()[lastUpTo(state.view.moments, moment)];

function momentOfX(x) {
  return state.axis === "record" ? x : state.view.moments[lastUpTo(state.view.times, x)];
}

/** How many steps had ended at a moment. */
function stepAt(moment) {
  const steps = state.view.steps;
  if (!steps.length || steps[0] > moment) return 0;
  return Math.round((lastUpTo(steps, moment) + 1) * state.view.all_steps / steps.length);
}

function goStep(direction) {
  const steps = state.view.steps, at = state.moment;
  const next = direction > 0 ? steps.find(step => step > at) : steps.filter(step => step < at).pop();
  if (next !== undefined) setMoment(next);
}
