// words.js: the text around the pictures of `cenote view`: figures, legends, the figures of the moment, the largest holders.

// --- text around the pictures

function showFrame() {
  const view = state.view;
  $("name").textContent = views.length > 1 ? "" : view.title + (view.device ? ", device " + view.device : "");
  $("slider").max = view.records;
  $("slider").hidden = !view.records;
  for (const id of ["axes", "peak"]) $(id).hidden = !view.records;
  for (const id of ["before", "after"]) $(id).hidden = !view.steps.length;
  $("timeline").parentElement.hidden = view.moments.length < 2;
  $("timeline-title").textContent = view.records ? "Memory over time" : "Memory by step";
  $("sampled").textContent = view.sampled ? `${count(view.moments.length)} of ${count(view.records)} records, every peak among them` : "";
  $("addresses").hidden = !view.spans.length;
  $("divisions").replaceChildren(make("span", {}, view.records ? "stack by" : "colour by"), ...view.divisions.map(divisionButton));
  $("notes").replaceChildren(...view.notes.map(note => make("li", {}, note)));
  $("words").hidden = !view.words.length;
  $("words").replaceChildren(...view.words.map(words => make("p", {}, words)));
  showFigures();
  showKeys();
  paint();
}

function divisionButton(name) {
  const button = make("button", { onclick: () => { Object.assign(state, { division: name, group: -1 }); paint(); } }, name);
  button.dataset.division = name;
  return button;
}

function showFigures() {
  const view = state.view, figures = [], moment = view.moment?.figures;
  for (const [name, value] of Object.entries(view.peaks)) if (view.records) figures.push([size(value), `peak ${name}`]);
  for (const name of ["requested", "allocated", "reserved"]) if (moment?.[name] !== undefined) figures.push([size(moment[name]), name + " now"]);
  for (const name of ["requested", "reserved"]) if (moment?.[name + "_peak"]) figures.push([size(moment[name + "_peak"]), "peak " + name]);
  if (view.lines.reserved || moment?.reserved) {
    const held = view.peaks.reserved || moment.reserved_peak || moment.reserved, used = view.records ? view.peaks[view.unit] : moment.requested_peak;
    if (used) figures.push(["+" + ((held / used - 1) * 100).toFixed(1) + " %", `peak reserved over peak ${view.unit}`]);
  } else {
    figures.push(["unknown", "reserved: the trace does not tell"]);
  }
  if (view.limits.card) figures.push([size(view.limits.card), "the card has"]);
  if (view.records) figures.push([count(view.records), "records"]);
  figures.push([count(view.blocks.all), "blocks"]);
  if (view.all_steps) figures.push([count(view.all_steps), "steps"]);
  $("figures").replaceChildren(...figures.map(([value, words]) => make("div", {}, make("b", {}, value), make("span", {}, words))));
}

function key(color, words) {
  return make("span", {}, swatch(color), words);
}

function showKeys() {
  const pages = state.view.moment?.pages ?? [];
  const tellsHeld = state.view.ranges.length > 0;
  const spaceKeys = [key(css("--void"), tellsHeld ? "not held" : "no block"), ...(tellsHeld ? [key(css("--free"), "held, free")] : [])];
  if (pages.length) {
    spaceKeys.push(key(css("--owned"), "page mapped at its owner"), key(css("--alias"), "alias: a page mapped here as well"),
      key(css("--frozen"), "frozen or pinned"));
  }
  $("space-keys").replaceChildren(...spaceKeys);
  const counts = ["owned", "free", "spare (mapped nowhere)", "leaving"].map((name, i) => [name, pages.filter(page => page[2] === i).length]);
  $("page-keys").replaceChildren(...counts.map(([name, number], i) => key(css(PAGE_COLORS[i]), `${name}: ${count(number)}`)),
    key(css("--alias"), `mapped more than once: ${count(pages.filter(page => page[3] > 1).length)}`),
    key(css("--frozen"), `frozen or pinned: ${count(pages.filter(page => page[4]).length)}`));
  $("page-count").textContent = pages.length ? `${count(pages.length)} of ${size(state.view.moment.page_bytes)}` : "";
}

function showMoment(live) {
  const view = state.view, at = lastUpTo(view.moments, state.moment), level = unitLine()?.[at] ?? 0;
  const shown = live.reduce((sum, block) => sum + view.blocks.size[block], 0);
  $("slider").value = state.moment;
  const blocks = live.length === 1 ? "block" : "blocks";
  const text = [make("b", {}, size(view.records ? level : shown)), ` ${view.unit} in ${count(live.length)} ${blocks}`];
  if (view.records) {
    text.push(` · record ${count(state.moment)}`, view.all_steps ? ` · after step ${count(stepAt(state.moment))}` : "",
      ` · ${duration(view.times[at])}`);
  }
  const absent = level - shown;
  if (view.blocks.count < view.blocks.all && absent > 0) text.push(` · ${size(absent)} in blocks too small or too short-lived to be drawn`);
  $("moment").replaceChildren(...text);
  const when = state.moment === view.peak ? "at the peak" : "at record " + count(state.moment);
  $("legend-moment").textContent = view.records ? when : "in the snapshot";
  const span = live.length && view.spans.length ? view.extent : 0;
  $("spread").textContent = span ? `${size(span)} of addresses ever used, ${size(rowsOf(view).bytes)} a row; wide gaps are not drawn` : "";
}

/** Live bytes of each group at the moment. */
function groupSums(live) {
  const stack = state.view.stacks[state.division], sums = new Float64Array(groupNames().length);
  if (stack) {
    const at = lastUpTo(state.view.moments, state.moment) * sums.length;
    return stack.values.subarray(at, at + sums.length);
  }
  const ranks = state.view.blocks.groups[state.division], last = sums.length - 1;
  for (const block of live) sums[Math.min(ranks[block], last)] += state.view.blocks.size[block];
  return sums;
}

function showLegend(live) {
  const sums = groupSums(live), most = Math.max(1, ...sums), at = lastUpTo(state.view.moments, state.moment);
  const lines = state.view.moments.length > 1 ? Object.entries(state.view.lines) : [];
  const items = [...lines.map(([name, line]) => lineItem(name, state.view.records ? size(line[at]) : "")),
    ...Array.from(sums, (bytes, group) => legendItem(group, bytes, most))];
  $("legend").replaceChildren(...items);
  $("legend").className = state.group < 0 ? "" : "picked";
}

function legendItem(group, bytes, most) {
  const bar = make("u");
  bar.style.background = colorOf(group);
  bar.style.width = Math.max(0, bytes) / most * 100 + "%";
  const button = make("button", { onclick: () => { state.group = state.group === group ? -1 : group; paint(); } },
    swatch(colorOf(group)), make("span", { title: groupNames()[group] }, groupNames()[group]), make("em", {}, size(bytes)), bar);
  button.setAttribute("aria-pressed", state.group === group);
  return make("li", {}, button);
}

function lineItem(name, words) {
  const mark = make("i", { className: "stroke" });
  mark.style.color = lineColor(name);
  const row = make("button", { tabIndex: -1 }, mark, make("span", {}, name), make("em", {}, words));
  return make("li", {}, row);
}

// --- the largest holders

const MOST_ROWS = 200;

function columns() {
  const all = [["size", true, block => state.view.blocks.size[block], size]];
  for (const division of [state.division, ...state.view.divisions.filter(name => name !== state.division && name !== "size")]) {
    all.push([division === "size" ? "class" : division, false, block => nameOf(division, block), text => text]);
  }
  if (state.view.records) all.push(["born", true, block => state.view.blocks.born[block], born => born ? count(born) : "before"]);
  if (state.view.blocks.address) all.push(["address", true, block => state.view.blocks.address[block], hex]);
  return all;
}

/** The text divisions that say what a block is for. */
const told = () => ["kind", "name", "line", "tag", "phase", "stream"].filter(name => state.view.divisions.includes(name)).slice(0, 3);

function groupsOf(live) {
  const divisions = told().length ? told() : [state.division], groups = new Map();
  for (const block of live) {
    const names = divisions.map(division => nameOf(division, block)), key = names.join("\n");
    const group = groups.get(key) ?? groups.set(key, { key, names, divisions, bytes: 0, blocks: [] }).get(key);
    group.bytes += state.view.blocks.size[block];
    group.blocks.push(block);
  }
  return [...groups.values()].sort((a, b) => b.bytes - a.bytes);
}

function showGroups(live) {
  const groups = groupsOf(live), rows = [];
  $("columns").replaceChildren(make("tr", {}, ...["size", "blocks", "what"].map((name, i) =>
    make("th", { className: i < 2 ? "number" : "" }, make("button", { tabIndex: -1 }, name)))));
  for (const group of groups.slice(0, MOST_ROWS)) {
    rows.push(groupRow(group));
    if (group.key === state.opened) rows.push(...group.blocks.slice(0, MOST_ROWS).map(blockRow));
  }
  $("holders").replaceChildren(...rows);
  const some = groups.length > MOST_ROWS ? `the ${MOST_ROWS} largest of ` : "";
  $("holder-count").textContent = `${some}${count(groups.length)} groups of ${count(live.length)} blocks`;
}

function groupRow(group) {
  const toggle = () => { state.opened = state.opened === group.key ? null : group.key; paint(); };
  const line = group.names[group.divisions.indexOf("line")], source = state.view.sources[line];
  const isNew = (name, i, all) => all.indexOf(name) === i && !(line && name.endsWith(": " + line));  // a name may be made of the line
  const [first, ...more] = group.names.filter(isNew);
  const what = make("td", {}, swatch(colorOf(groupOf(group.blocks[0]))), first, ...more.map(name => make("small", {}, name)),
    ...(source ? [make("code", {}, source)] : []));
  const row = rowOf(toggle, make("td", { className: "number" }, size(group.bytes)),
    make("td", { className: "number" }, count(group.blocks.length)), what);
  row.dataset.group = group.key;
  return row;
}

/** A block of the group that is open. */
function blockRow(block) {
  const born = state.view.blocks.born[block], since = state.view.records ? (born ? `since record ${count(born)}` : "from before") : "";
  const where = state.view.blocks.address ? hex(state.view.blocks.address[block]) : "";
  const row = rowOf(() => pick(block), make("td", { className: "number" }, size(state.view.blocks.size[block])), make("td"),
    make("td", {}, make("small", {}, [where, since].filter(text => text).join(" · "))));
  row.dataset.block = block;
  row.setAttribute("aria-selected", block === state.block);
  return row;
}

function rowOf(act, ...cells) {
  return make("tr", { tabIndex: 0, onclick: act, onkeydown: event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act();
  } }, ...cells);
}

function showHolders(live) {
  $("holders").className = state.rows;
  for (const button of document.querySelectorAll("[data-rows]")) button.setAttribute("aria-pressed", button.dataset.rows === state.rows);
  if (state.rows === "groups") return showGroups(live);
  const all = columns(), column = all.find(each => each[0] === state.sort) ?? all[0];
  const largest = live.slice().sort((a, b) => state.view.blocks.size[b] - state.view.blocks.size[a]).slice(0, MOST_ROWS);
  const direction = state.down ? -1 : 1;
  largest.sort((a, b) => { const x = column[2](a), y = column[2](b); return (x < y ? -1 : x > y ? 1 : 0) * direction; });
  $("columns").replaceChildren(make("tr", {}, ...all.map(each => headCell(each, column))));
  $("holders").replaceChildren(...largest.map(block => holderRow(block, all)));
  $("holder-count").textContent = (live.length > MOST_ROWS ? `the ${MOST_ROWS} largest of ` : "") + `${count(live.length)} blocks`;
}

function headCell([name, isNumber], sorted) {
  const cell = make("th", { className: isNumber ? "number" : "" }, make("button", { onclick: () => sortBy(name, isNumber) }, name));
  cell.firstChild.dataset.sort = name;
  if (name === sorted[0]) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
  return cell;
}

function sortBy(name, isNumber) {
  state.down = state.sort === name ? !state.down : isNumber;
  state.sort = name;
  paint();
  requestAnimationFrame(() => document.querySelector(`[data-sort="${name}"]`)?.focus());
}

function holderRow(block, all) {
  const row = rowOf(() => pick(block));
  row.dataset.block = block;
  row.setAttribute("aria-selected", block === state.block);
  all.forEach(([name, isNumber, value, write], i) => {
    const text = write(value(block)), cell = make("td", { className: isNumber ? "number" : "", title: text }, text);
    if (i === 1) cell.prepend(swatch(colorOf(groupOf(block))));
    row.append(cell);
  });
  return row;
}

function pick(block) {
  state.block = state.block === block ? -1 : block;
  paint();
  requestAnimationFrame(() => document.querySelector(`#holders [data-block="${block}"]`)?.focus({ preventScroll: false }));
}
