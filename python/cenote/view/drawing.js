// drawing.js: the pictures of `cenote view`, each drawn anew from `state` on a canvas.

// --- drawing: canvases

/** Clears a canvas and makes it as sharp as the screen. Returns its drawing context and its size. */
function begin(canvas, height) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  return { pen, width, height };
}

const LEFT = 64, BOTTOM = 34, TOP = 14, HEIGHT = 320;

/** A round distance between grid lines, of which about `wanted` fit into `span`; powers of two for bytes. */
function gridStep(span, wanted, base) {
  if (base === 2) return 2 ** Math.ceil(Math.log2(span / wanted));
  const rough = span / wanted, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find(factor => factor * power >= rough);
}

/** How the timeline maps records or times to x, and bytes to y. */
function frameOf(width) {
  const view = state.view, all = xs();
  const first = Math.max(0, lastUpTo(all, state.from)), last = Math.min(all.length - 1, lastUpTo(all, state.to) + 1);
  let top = 1;
  for (const line of Object.values(view.lines)) for (let i = first; i <= last; i++) top = line[i] > top ? line[i] : top;
  for (const bytes of Object.values(view.limits)) if (bytes < 1.6 * top) top = Math.max(top, bytes);  // one far above would flatten all
  const right = width - 8, base = HEIGHT - BOTTOM;
  const x = value => LEFT + (value - state.from) / (state.to - state.from) * (right - LEFT);
  return { points: thinned(first, last, x), isDense: last - first > 2 * width, top: top * 1.04, right, base, x,
    y: value => base - value / (top * 1.04) * (base - TOP) };
}

/** The indexes of the points to draw. If more points than pixels are in sight: the highest and the lowest point of each pixel, in their order. */
function thinned(first, last, x) {
  const all = xs(), levels = unitLine(), points = [];
  if (!levels || last - first < 2 * (x(state.to) - x(state.from))) return Array.from({ length: last - first + 1 }, (_, i) => first + i);
  for (let i = first; i <= last;) {
    const pixel = Math.floor(x(all[i]));
    let low = i, high = i;
    for (; i <= last && Math.floor(x(all[i])) === pixel; i++) {
      if (levels[i] < levels[low]) low = i;
      if (levels[i] > levels[high]) high = i;
    }
    points.push(Math.min(low, high));
    if (low !== high) points.push(Math.max(low, high));
  }
  return points;
}

function drawTimeline() {
  const { pen, width } = begin($("timeline"), HEIGHT), frame = frameOf(width);
  drawGrid(pen, frame);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, frame.right - LEFT, HEIGHT);
  pen.clip();
  drawStack(pen, frame);
  drawLines(pen, frame);
  drawSteps(pen, frame);
  drawLimits(pen, frame);
  drawMarks(pen, frame);
  drawLife(pen, frame);
  drawCursor(pen, frame);
  pen.restore();
}

function drawGrid(pen, frame) {
  pen.strokeStyle = css("--line");
  pen.fillStyle = css("--soft");
  pen.textAlign = "right";
  const step = gridStep(frame.top, 5, 2);
  for (let value = 0; value <= frame.top; value += step) {
    const y = Math.round(frame.y(value)) + .5;
    pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(frame.right, y); pen.stroke();
    pen.fillText(size(value), LEFT - 6, y + 4);
  }
  pen.textAlign = "center";
  const width = gridStep(state.to - state.from, Math.max(2, (frame.right - LEFT) / 130), 10);
  for (let value = Math.ceil(state.from / width) * width; value <= state.to; value += width) {
    pen.fillText(state.axis === "time" ? duration(value) : count(Math.round(value)), Math.min(frame.x(value), frame.right - 26), HEIGHT - 4);
  }
}

/** Draws a polygon for each group, from the bottom up. A level holds until the next record, so that the edges are steps. */
function drawStack(pen, frame) {
  const stack = state.view.stacks[state.division];
  if (!stack) return;
  const groups = stack.groups.length, points = frame.points, below = new Float64Array(points.length);
  for (let group = 0; group < groups; group++) {
    const floor = below.slice();
    for (let k = 0; k < points.length; k++) below[k] += stack.values[points[k] * groups + group];
    pen.beginPath();
    edge(pen, frame, below, false);
    edge(pen, frame, floor, true);
    pen.closePath();
    pen.globalAlpha = state.group < 0 || state.group === group ? .92 : .18;
    pen.fillStyle = colorOf(group);
    pen.fill();
  }
  pen.globalAlpha = 1;
}

/** Adds a line through the levels of the frame's points to the path, from left to right or back. */
function edge(pen, frame, levels, isBack) {
  const all = xs(), points = frame.points, end = points.length - 1;
  for (let k = 0; k <= end; k++) {
    const i = isBack ? end - k : k, x = frame.x(all[points[i]]), y = frame.y(levels[i]);
    const after = i < end ? frame.x(all[points[i + 1]]) : x;
    pen.lineTo(isBack ? after : x, y);
    pen.lineTo(isBack ? x : after, y);
  }
}

const lineColor = name => css(LINES[name] ?? (name.startsWith("peak") ? "--frozen" : "--accent"));

function drawLines(pen, frame) {
  const all = xs();
  for (const [name, line] of Object.entries(state.view.lines)) {
    pen.beginPath();
    if (frame.isDense && name !== "reserved") continue;  // the upper edge of the stack; so dense a line would hide the colours
    if (state.view.records) edge(pen, frame, frame.points.map(i => line[i]), false);
    else dots(pen, frame, all, line);
    pen.strokeStyle = lineColor(name);
    pen.lineWidth = name === "reserved" || !state.view.records ? 2 : 1;
    pen.globalAlpha = name === "reserved" || !state.view.records ? 1 : .5;
    pen.setLineDash(name === "allocated" ? [4, 3] : []);
    pen.stroke();
  }
  pen.setLineDash([]);
  pen.globalAlpha = pen.lineWidth = 1;
}

/** Draws the figures that a snapshot has for the ends of its steps. */
function dots(pen, frame, all, line) {
  for (const i of frame.points) {
    const x = frame.x(all[i]), y = frame.y(line[i]);
    pen.lineTo(x, y);
    pen.arc(x, y, 2, 0, 7);
    pen.moveTo(x, y);
  }
}

/** Draws a tick where each step ended, and the step's number if there is room. */
function drawSteps(pen, frame) {
  let lastTick = -9, lastText = -99;
  state.view.steps.forEach((moment, i) => {
    const x = Math.round(frame.x(xOfMoment(moment))) + .5;
    if (x < LEFT || x > frame.right || x - lastTick < 4) return;
    lastTick = x;
    pen.strokeStyle = css("--soft");
    pen.globalAlpha = .35;
    pen.beginPath(); pen.moveTo(x, TOP); pen.lineTo(x, frame.base + 5); pen.stroke();
    pen.globalAlpha = 1;
    if (x - lastText < 52 || x < LEFT + 20 || x > frame.right - 20) return;
    lastText = x;
    pen.fillStyle = css("--soft");
    pen.textAlign = "center";
    pen.fillText("step " + count(stepAt(moment)), x, frame.base + 16);
  });
}

/** Draws what the card has, what it leaves and what is allowed, each as a line; not one that is far above all. */
function drawLimits(pen, frame) {
  let below = -99;
  const lines = Object.entries(state.view.limits).sort((a, b) => b[1] - a[1]);
  for (const [name, bytes] of lines) {
    if (bytes > frame.top) continue;
    const y = Math.round(frame.y(bytes)) + .5, text = Math.max(y - 3, below + 13, 10);
    pen.strokeStyle = pen.fillStyle = css("--frozen");
    pen.setLineDash([7, 4]);
    pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(frame.right, y); pen.stroke();
    pen.setLineDash([]);
    pen.textAlign = "left";
    label(pen, `${name} ${size(bytes)}`, LEFT + 6, text);
    below = text;
  }
}

/** Text that can be read on any colour. */
function label(pen, text, x, y) {
  pen.lineWidth = 3;
  pen.strokeStyle = css("--panel");
  pen.strokeText(text, x, y);
  pen.lineWidth = 1;
  pen.fillText(text, x, y);
}

/** Draws the moments at which memory ran out. */
function drawMarks(pen, frame) {
  for (const [moment, words] of state.view.marks) {
    const x = Math.round(frame.x(xOfMoment(moment))) + .5;
    if (x < LEFT || x > frame.right + 1) continue;
    pen.strokeStyle = pen.fillStyle = css("--alias");
    pen.lineWidth = 2;
    pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, frame.base); pen.stroke();
    pen.lineWidth = 1;
    pen.textAlign = x > (LEFT + frame.right) / 2 ? "right" : "left";
    label(pen, words, x + (pen.textAlign === "right" ? -6 : 6), 40);
  }
}

/** Draws the lifetime of the picked block. */
function drawLife(pen, frame) {
  if (state.block < 0 || !state.view.records) return;
  const blocks = state.view.blocks, from = frame.x(xOfMoment(blocks.born[state.block]));
  const gone = blocks.gone[state.block], to = gone === FOR_EVER ? frame.right : frame.x(xOfMoment(gone));
  pen.fillStyle = css("--accent");
  pen.globalAlpha = .16; pen.fillRect(from, TOP, Math.max(2, to - from), frame.base - TOP);
  pen.globalAlpha = 1; pen.fillRect(from, frame.base + 1, Math.max(2, to - from), 3);
}

function drawCursor(pen, frame) {
  const marks = state.view.records ? [[xOfMoment(state.moment), 1]] : [];
  if (state.hover) marks.push([state.hover.x, .35]);
  for (const [value, alpha] of marks) {
    const x = Math.round(frame.x(value)) + .5;
    pen.globalAlpha = alpha;
    pen.strokeStyle = css("--cursor");
    pen.beginPath(); pen.moveTo(x, 4); pen.lineTo(x, frame.base); pen.stroke();
    if (alpha === 1) { pen.fillStyle = css("--cursor"); pen.beginPath(); pen.moveTo(x - 5, 0); pen.lineTo(x + 5, 0); pen.lineTo(x, 8); pen.fill(); }
  }
  pen.globalAlpha = 1;
}

// --- drawing: the address space

const ROW = 15, STRIP = 4, GUTTER = 112;

/** The bytes of a row, the number of rows and their distance. Rows have a round size; all can be seen at once, unless the reader zooms. */
function rowsOf(view) {
  const wanted = Math.max(1 << 20, view.extent / 28), round = 2 ** Math.floor(Math.log2(wanted)) / 4;
  const bytes = Math.ceil(wanted / round) * round / state.zoom;
  return { bytes, rows: Math.max(1, Math.ceil(view.extent / bytes)), pitch: ROW + (view.moment?.pages?.length ? STRIP + 1 : 0) + 3 };
}

/** Calls draw(x, y, width) for each row that [address, address + bytes) touches. A caller in a loop passes `rows`, so that it is computed once. */
function eachRow(width, address, bytes, draw, rows = rowsOf(state.view)) {
  const scale = (width - GUTTER) / rows.bytes;
  let at = offsetOf(state.view, address), left = bytes;
  while (left > 0) {
    const row = Math.floor(at / rows.bytes), inRow = at - row * rows.bytes, part = Math.min(left, rows.bytes - inRow);
    draw(GUTTER + inRow * scale, row * rows.pitch, part * scale);
    at += part;
    left -= part;
  }
}

function drawSpace(live) {
  const view = state.view, rows = rowsOf(view);
  const { pen, width } = begin($("space"), rows.rows * rows.pitch + 4);
  drawRowLabels(pen, width, rows);
  pen.fillStyle = css("--free");
  for (const [address, bytes, born, gone] of view.ranges) {
    if (born <= state.moment && state.moment < gone) eachRow(width, address, bytes, (x, y, w) => pen.fillRect(x, y, w, ROW));
  }
  drawBlocks(pen, width, rows, live);
  drawSpanEnds(pen, width);
  drawSlots(pen, width, rows);
  if (state.block >= 0) outline(pen, width, view.blocks.address[state.block], view.blocks.size[state.block]);
}

function drawRowLabels(pen, width, rows) {
  pen.textAlign = "left";
  for (let row = 0; row < rows.rows; row++) {
    pen.fillStyle = css("--void");
    pen.fillRect(GUTTER, row * rows.pitch, (width - GUTTER) * Math.min(1, (state.view.extent - row * rows.bytes) / rows.bytes), ROW);
    pen.fillStyle = css("--soft");
    pen.fillText(hex(addressOf(state.view, row * rows.bytes)), 0, row * rows.pitch + 12);
  }
}

function drawBlocks(pen, width, rows, live) {
  const { address, size: bytes, groups } = state.view.blocks, ranks = groups[state.division], names = groupNames();
  const colors = names.map((_, group) => colorOf(group));
  for (const block of live) {
    const group = Math.min(ranks[block], names.length - 1);
    pen.globalAlpha = state.group < 0 || state.group === group ? 1 : .15;
    pen.fillStyle = colors[group];
    // If there is room, a gap of half a pixel separates neighbours of one colour.
    eachRow(width, address[block], bytes[block], (x, y, w) => pen.fillRect(x, y, w > 3 ? w - .7 : Math.max(w, .35), ROW), rows);
  }
  pen.globalAlpha = 1;
}

/** Draws a notch between two spans: the addresses between them were never in use. */
function drawSpanEnds(pen, width) {
  pen.fillStyle = css("--panel");
  if (state.view.spans.length > 400) return;
  for (const span of state.view.spans.slice(1)) eachRow(width, span.base, 1, (x, y) => pen.fillRect(x - 1, y, 2, ROW));
}

/** Draws, below each row, the pages that are mapped there. The owner of a page comes first in `places`; its other slots are aliases. */
function drawSlots(pen, width, rows) {
  const moment = state.view.moment;
  for (const page of moment?.pages ?? []) {
    const [, bytes, kind, maps, held, , places] = page;
    places.forEach((address, i) => {
      pen.fillStyle = held ? css("--frozen") : i || (maps > 1 && kind) ? css("--alias") : kind ? css("--line") : css("--owned");
      eachRow(width, address, Math.min(bytes, moment.page_bytes), (x, y, w) => pen.fillRect(x, y + ROW + 1, w > 2 ? w - .6 : w, STRIP), rows);
    });
  }
  const picked = moment?.pages?.[state.page];
  for (const address of picked?.[6] ?? []) outline(pen, width, address, picked[1]);
}

function outline(pen, width, address, bytes) {
  pen.strokeStyle = css("--cursor");
  pen.lineWidth = 2;
  eachRow(width, address, bytes, (x, y, w) => pen.strokeRect(x - 1, y + 1, Math.max(4, w + 1), ROW - 2));
  pen.lineWidth = 1;
}

// --- drawing: physical pages

const CELL = 12, PAGE_COLORS = ["--owned", "--free", "--void", "--line"];

function pageGrid(width) {
  const pages = state.view.moment?.pages ?? [], cell = pages.length > 12000 ? 5 : pages.length > 3000 ? 8 : CELL;
  return { cell, columns: Math.max(1, Math.floor(width / cell)) };
}

function drawPages() {
  const pages = state.view.moment?.pages ?? [];
  $("physical").hidden = !pages.length;
  if (!pages.length) return;
  const grid = pageGrid($("pages").clientWidth), { pen } = begin($("pages"), Math.ceil(pages.length / grid.columns) * grid.cell + 2);
  pages.forEach((page, i) => drawPage(pen, grid, page, i));
}

function drawPage(pen, grid, page, i) {
  const x = i % grid.columns * grid.cell, y = Math.floor(i / grid.columns) * grid.cell, side = grid.cell - 1.5;
  pen.fillStyle = css(PAGE_COLORS[page[2]]);
  pen.fillRect(x, y, side, side);
  if (page[2] === 2) { pen.strokeStyle = css("--soft"); pen.strokeRect(x + .5, y + .5, side - 1, side - 1); }
  if (page[3] > 1) {  // mapped more than once: a corner
    pen.fillStyle = css("--alias");
    pen.beginPath(); pen.moveTo(x + side, y); pen.lineTo(x + side, y + side * .7); pen.lineTo(x + side * .3, y); pen.fill();
  }
  if (page[4]) { pen.fillStyle = css("--frozen"); pen.fillRect(x, y + side - 3, side, 3); }
  if (i === state.page) { pen.strokeStyle = css("--cursor"); pen.lineWidth = 2; pen.strokeRect(x, y, side, side); pen.lineWidth = 1; }
}
