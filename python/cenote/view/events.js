// events.js: paints at most once a frame, and lets keys, buttons and the mouse change `state`. It comes last among the scripts, and starts the page.

// --- painting: at most once a frame

let isPaintDue = false;

function paint() {
  if (!isPaintDue) requestAnimationFrame(draw);
  isPaintDue = true;
}

function draw() {
  isPaintDue = false;
  const live = liveBlocks();
  for (const button of document.querySelectorAll("[data-division]")) button.setAttribute("aria-pressed", button.dataset.division === state.division);
  for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", button.dataset.axis === state.axis);
  if (state.view.moments.length > 1) drawTimeline();
  if (state.view.spans.length) drawSpace(live);
  drawPages();
  showMoment(live);
  showLegend(live);
  showHolders(live);
}

// --- hovering

function tip(event, ...inside) {
  const box = $("tip");
  box.replaceChildren(...inside);
  box.style.display = "block";
  box.style.left = Math.min(event.clientX + 16, innerWidth - box.offsetWidth - 8) + "px";
  box.style.top = Math.min(event.clientY + 16, innerHeight - box.offsetHeight - 8) + "px";
}

function hideTip() {
  $("tip").style.display = "none";
  if (state.hover) { state.hover = null; drawTimeline(); }
}

const tipRow = (color, name, value) => make("div", {}, make("span", {}, ...(color ? [swatch(color)] : []), name), make("b", {}, value));

function xAt(event) {
  const box = $("timeline").getBoundingClientRect(), frame = frameOf(box.width);
  return state.from + (event.clientX - box.left - LEFT) / (frame.right - LEFT) * (state.to - state.from);
}

function hoverTimeline(event) {
  const view = state.view, at = lastUpTo(xs(), xAt(event)), moment = view.moments[at];
  state.hover = { x: xs()[at] };
  drawTimeline();
  const step = view.all_steps ? `after step ${count(stepAt(moment))}, ` : "";
  const where = view.records ? `record ${count(moment)}, ${step}${duration(view.times[at])}`
    : `step ${count(view.moment.steps[at]?.[0] ?? 0)}, ${duration(view.times[at])}`;
  const rows = Object.entries(view.lines).map(([name, line]) => tipRow(lineColor(name), name, size(line[at])));
  const stack = view.stacks[state.division] ?? { groups: [] };
  const groups = stack.groups.map((name, i) => [name, stack.values[at * stack.groups.length + i], i]).filter(group => group[1] > 0);
  groups.sort((a, b) => b[1] - a[1]);
  tip(event, make("small", {}, where), ...rows, ...groups.slice(0, 6).map(([name, bytes, i]) => tipRow(colorOf(i), name, size(bytes))));
}

/** The address under the pointer, or null. */
function addressAt(event) {
  const box = $("space").getBoundingClientRect(), rows = rowsOf(state.view);
  const x = event.clientX - box.left - GUTTER, row = Math.floor((event.clientY - box.top) / rows.pitch);
  const offset = (row + x / (box.width - GUTTER)) * rows.bytes;
  return x < 0 || offset < 0 || offset >= state.view.extent ? null : addressOf(state.view, offset);
}

function blockAt(address) {
  const blocks = state.view.blocks;
  if (address === null) return undefined;
  return liveBlocks().find(block => blocks.address[block] <= address && address < blocks.address[block] + blocks.size[block]);
}

function hoverSpace(event) {
  const address = addressAt(event), block = blockAt(address);
  if (block === undefined) {
    if (address === null) return hideTip();
    return tip(event, make("b", {}, "no block"), tipRow("", "address", hex(Math.floor(address))), ...pageRows(address));
  }
  const view = state.view, blocks = view.blocks;
  const rows = view.divisions.map(name => tipRow(name === state.division ? colorOf(groupOf(block)) : "", name, nameOf(name, block)));
  const until = blocks.gone[block] === FOR_EVER ? "on" : "to " + count(blocks.gone[block]);
  const life = view.records ? [tipRow("", "live", `from record ${count(blocks.born[block])} ${until}`)] : [];
  tip(event, make("b", {}, size(blocks.size[block])), tipRow("", "address", hex(blocks.address[block])), ...rows, ...life, ...pageRows(address));
}

const PAGE_STATES = ["owned", "free", "spare", "leaving"];

function pageRows(address) {
  const moment = state.view.moment, pages = moment?.pages ?? [];
  return pages.filter(page => page[6].some(place => place <= address && address < place + page[1]))
    .slice(0, 3).map(page => tipRow("", "page " + page[0], PAGE_STATES[page[2]] + (page[3] > 1 ? ", mapped " + page[3] + " times" : "")));
}

function pageAt(event) {
  const box = $("pages").getBoundingClientRect(), grid = pageGrid(box.width);
  const column = Math.floor((event.clientX - box.left) / grid.cell);
  const index = Math.floor((event.clientY - box.top) / grid.cell) * grid.columns + column;
  return column < grid.columns && index < state.view.moment.pages.length ? index : -1;
}

function hoverPages(event) {
  const page = state.view.moment.pages[pageAt(event)];
  if (!page) return hideTip();
  tip(event, make("b", {}, "page " + page[0]), tipRow("", "state", PAGE_STATES[page[2]] + (page[4] ? ", frozen or pinned" : "")),
    tipRow("", "last used by", state.view.moment.page_users[page[5]]),
    ...page[6].slice(0, 6).map((address, i) => tipRow("", i ? "also mapped at" : "mapped at", hex(address))));
}

// --- events

function dragTimeline(down) {
  const canvas = $("timeline"), startX = down.clientX, from = state.from, to = state.to, width = frameOf(canvas.clientWidth).right - LEFT;
  let moved = false;
  canvas.setPointerCapture(down.pointerId);
  canvas.onpointermove = event => {
    moved = moved || Math.abs(event.clientX - startX) > 4;
    if (moved) setRange(from - (event.clientX - startX) / width * (to - from), to - (event.clientX - startX) / width * (to - from));
  };
  canvas.onpointerup = event => {
    canvas.onpointermove = hoverTimeline;
    canvas.onpointerup = null;
    if (!moved && state.view.records) setMoment(momentOfX(xAt(event)));
  };
}

function timelineKey(event) {
  const move = (state.to - state.from) / 8;
  const actions = { ArrowLeft: () => setRange(state.from - move, state.to - move), ArrowRight: () => setRange(state.from + move, state.to + move),
    "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), "0": showAll }[event.key];
  if (actions) { event.preventDefault(); actions(); }
}

/** Arrow keys pick the next or the previous block by address. */
function spaceKey(event) {
  const distance = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!distance) return;
  event.preventDefault();
  const live = liveBlocks(), at = live.indexOf(state.block);
  state.block = live[Math.max(0, Math.min(live.length - 1, at < 0 ? 0 : at + distance))] ?? -1;
  paint();
}

function pageKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const actions = { "[": () => goStep(-1), "]": () => goStep(1), p: () => state.view.records && setMoment(state.view.peak),
    Escape: () => { Object.assign(state, { group: -1, block: -1, page: -1 }); paint(); } }[event.key];
  if (actions) actions();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  themed.clear();
  showKeys();
  paint();
}

function listen() {
  const timeline = $("timeline"), space = $("space"), pages = $("pages");
  Object.assign(timeline, { onpointerdown: dragTimeline, onpointermove: hoverTimeline, onpointerleave: hideTip, onkeydown: timelineKey });
  timeline.addEventListener("wheel", event => { event.preventDefault(); zoom(1.0015 ** event.deltaY, xAt(event)); }, { passive: false });
  Object.assign(space, { onpointermove: hoverSpace, onpointerleave: hideTip, onkeydown: spaceKey, onclick: event => {
    const block = blockAt(addressAt(event));
    if (block !== undefined) pick(block);
  } });
  Object.assign(pages, { onpointermove: hoverPages, onpointerleave: hideTip,
    onclick: event => { const page = pageAt(event); state.page = page === state.page ? -1 : page; paint(); } });
  $("slider").oninput = event => setMoment(+event.target.value);
  Object.assign($("views"), { onchange: event => choose(views[event.target.value]), hidden: views.length < 2 });
  $("views").append(...views.map((view, i) => make("option", { value: i }, view.title + (view.device ? `, device ${view.device}` : ""))));
  for (const button of document.querySelectorAll("[data-axis]")) button.onclick = () => { state.axis = button.dataset.axis; showAll(); };
  for (const button of document.querySelectorAll("[data-rows]")) {
    button.onclick = () => { Object.assign(state, { rows: button.dataset.rows, opened: null }); paint(); };
  }
  const actions = { in: () => zoom(.5), out: () => zoom(2), all: showAll, before: () => goStep(-1), after: () => goStep(1),
    peak: () => setMoment(state.view.peak),
    "rows-more": () => { state.zoom = Math.min(64, state.zoom * 2); paint(); }, "rows-less": () => { state.zoom = Math.max(1, state.zoom / 2);
      paint(); },
    theme: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark") };
  for (const [id, act] of Object.entries(actions)) $(id).onclick = act;
  document.addEventListener("keydown", pageKey);
  addEventListener("resize", paint);
}

listen();
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
choose(views[0]);
