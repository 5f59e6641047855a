// The page: a panel for each view, and what they share.

const LEFT = 62;

function surface(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.parentElement.clientWidth - 32;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return { context, width, height };
}

function line(context, points) {
  context.beginPath();
  points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.stroke();
}

const tip = document.getElementById("tip");
function showTip(pointer, lines) {
  tip.textContent = lines.join("\n");
  tip.hidden = false;
  tip.style.left = `${Math.min(pointer.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(pointer.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}
function hideTip() { tip.hidden = true; }

function element(name, settings = {}, ...children) {
  const made = Object.assign(document.createElement(name), settings);
  made.append(...children);
  return made;
}

function card(title, ...children) {
  return element("section", { className: "card" }, element("h3", { textContent: title }), ...children);
}

function choice(options, chosen, use) {
  const box = element("span", { className: "choice" });
  for (const [value, text] of options) {
    const button = element("button", { type: "button", textContent: text });
    button.setAttribute("aria-pressed", String(value === chosen));
    button.onclick = () => {
      for (const other of box.children) other.setAttribute("aria-pressed", String(other === button));
      use(value);
    };
    box.append(button);
  }
  return box;
}

// Columns: [heading, text of a row, is a number]. A row may have `use`, for a click.
function tableOf(columns, rows, chosen) {
  const head = element("tr");
  for (const [name, , isNumber] of columns) head.append(element("th", { textContent: name, className: isNumber ? "n" : "" }));
  const body = element("tbody");
  for (const row of rows) {
    const tr = element("tr", { className: `${row.use ? "link" : ""} ${chosen?.(row) ? "chosen" : ""}` });
    if (row.use) tr.onclick = row.use;
    for (const [, text, isNumber] of columns) {
      const cell = element("td", { className: isNumber ? "n" : "code", title: row.title ?? "" });
      cell.append(text(row));
      tr.append(cell);
    }
    body.append(tr);
  }
  return element("table", {}, element("thead", {}, head), body);
}

class Panel {
  constructor(view, scale) {
    this.view = view;
    this.scale = scale;
    this.line = null;
    this.group = grouping(view, "kind");
    this.root = element("div", { className: "panel" });
    const subtitle = [
      `${view.events.toLocaleString("en")} events`, view.seconds ? `${view.seconds.toFixed(view.seconds < 1 ? 3 : 1)} s` : "",
      `recorded under ${view.allocator}`, view.settings,
    ];
    this.numbers = element("div", { className: "numbers" });
    const lineCanvas = element("canvas"), mapCanvas = element("canvas");
    lineCanvas.setAttribute("aria-label", "bytes in use and reserved over time");
    mapCanvas.setAttribute("aria-label", "map of the reserved addresses");
    this.timeline = new Timeline(this, lineCanvas);
    this.map = new AddressMap(this, mapCanvas);
    this.legend = element("div", { className: "legend" });
    this.mapLegend = element("div", { className: "legend" });
    this.mapTitle = element("h3");
    this.tables = element("div", { className: "tables" });
    const tagged = view.tags.length > 1 ? [["tag", "tag"]] : [];
    const timed = view.seconds > 0 ? [choice([[false, "events"], [true, "time"]], false, (byTime) => { this.timeline.byTime = byTime; this.timeline.refresh(); })] : [];
    const moments = [["peak reserved", view.peakReserved], ["peak in use", view.peakActive], ["end", view.count - 1]];
    this.root.append(
      element("div", {},
        element("h2", { textContent: `${view.label ? `${view.label}: ` : ""}device ${view.device}` }),
        element("div", { className: "quiet", textContent: subtitle.filter(Boolean).join(", ") })),
      this.numbers,
      element("section", { className: "card" },
        element("div", { className: "bar" },
          element("h3", { textContent: "Over time", style: "margin:0" }),
          element("span", { className: "quiet", textContent: "click: choose a moment; drag: zoom in; drag with shift: move; double click: all" }),
          element("span", { className: "grow" }),
          element("span", { className: "labelled" },
            element("span", { className: "quiet", textContent: "colours by" }),
            choice([["kind", "kind"], ...tagged, ["line", "line of code"]], "kind", (mode) => this.regroup(mode))),
          ...timed),
        lineCanvas, this.legend),
      element("section", { className: "card" },
        element("div", { className: "bar" }, this.mapTitle, element("span", { className: "grow" }),
          ...moments.map(([text, event]) => element("span", { className: "choice" }, element("button", { type: "button", textContent: text, onclick: () => this.choose(event) })))),
        mapCanvas, this.mapLegend),
      this.tables,
    );
    if (view.summary) this.root.append(card("What would have helped", element("pre", { textContent: view.summary })));
  }

  regroup(mode) {
    this.group = grouping(this.view, mode);
    this.timeline.refresh();
    this.map.draw();
    this.showLegends();
  }

  choose(event) {
    this.state = stateAt(this.view, event);
    this.timeline.draw();
    this.map.draw();
    this.showNumbers();
    this.showLegends();
    this.showTables();
  }

  highlight(name) {
    this.line = this.line === name ? null : name;
    this.map.draw();
    this.showTables();
  }

  showNumbers() {
    const { view, state } = this;
    const number = (name, units, note) => {
      const box = element("div", { className: "number" }, element("b", { textContent: bytesText(units) }), element("span", { textContent: note }));
      box.dataset.number = name;
      box.dataset.bytes = String(Math.round(units * UNIT));
      return box;
    };
    this.numbers.replaceChildren(
      number("peak-reserved", view.reserved[view.peakReserved], "peak reserved"),
      number("peak-active", view.active[view.peakActive], "peak in use"),
      number("reserved", state.reserved, "reserved at this moment"),
      number("active", state.active, "in use"),
      number("stranded", state.stranded, "stranded: free, beside live blocks"),
      number("cached", state.cached, "cached: free, in whole units"),
    );
    this.mapTitle.textContent = `Addresses at ${secondsText(view, state.event)}, event ${state.event.toLocaleString("en")}`;
    this.mapTitle.style.margin = "0";
  }

  showLegends() {
    const entry = (className, style, text) => element("span", {}, element("i", { className: `swatch ${className}`, style }), element("span", { textContent: text }));
    const groups = () => Object.entries(this.group.labels)
      .filter(([g]) => Number(g) !== REST || this.hasRest())
      .map(([g, label]) => entry("", `background:${COLOURS[g]}`, label));
    const curves = this.view.curves.map((curve, i) => entry("line", `border-top-style:${["dashed", "dotted", "dashed"][i % 3]};border-color:var(--quiet)`, `reserved under ${curve.name} (replay), at most ${bytesText(curve.peak / UNIT)}`));
    this.legend.replaceChildren(...groups(), entry("line", "border-color:var(--ink)", "reserved"), ...curves);
    this.mapLegend.replaceChildren(
      ...groups(), entry("hatch", "", "stranded"), entry("", "background:var(--cached)", "cached"),
      element("span", { className: "quiet", textContent: "dark ticks: where a segment begins; click a block or a line below to find all of its line" }),
    );
  }

  hasRest() {
    for (let b = 0; b < this.view.size.length; b++) if (this.group.of(b) === REST) return true;
    return false;
  }

  showTables() {
    const { view, state } = this;
    const link = (row) => ({ ...row, use: () => this.highlight(row.name), title: view.frames[row.stack].join("\n") });
    const chosen = (row) => row.name === this.line;
    const holders = [...state.lines].sort((a, b) => b.size - a.size).slice(0, 12).map(link);
    const pins = state.lines.filter((row) => row.stranded >= 1).sort((a, b) => b.stranded - a.stranded).slice(0, 12).map(link);
    this.tables.replaceChildren(
      card("Who holds it at this moment", tableOf([
        ["line of code", (r) => r.name], ["kind", (r) => view.kinds[view.kind[r.block]]],
        ["blocks", (r) => r.blocks.toLocaleString("en"), true], ["in use", (r) => bytesText(r.size), true],
      ], holders, chosen)),
      card("What keeps free memory from use", pins.length ? tableOf([
        ["line of code", (r) => r.name], ["blocks", (r) => r.blocks.toLocaleString("en"), true],
        ["in use", (r) => bytesText(r.size), true], ["strands", (r) => bytesText(r.stranded), true],
      ], pins, chosen) : element("p", { className: "quiet", textContent: "Nothing is stranded at this moment." })),
      card("Pools and streams at this moment", tableOf([
        ["pool", (r) => view.pools[r.pool]], ["stream", (r) => view.streams[r.stream]],
        ["reserved", (r) => bytesText(r.reserved), true], ["in use", (r) => bytesText(r.active), true],
        ["stranded", (r) => bytesText(r.stranded), true],
      ], state.places.slice(0, 14))),
    );
    if (view.poolSizes.length) {
      this.tables.append(card("Graph pools, now", tableOf([
        ["pool", (r) => r.name || `pool ${r.handle.join(", ")}`],
        ["results", (r) => bytesText(r.live / UNIT), true], ["scratch", (r) => bytesText(r.scratch / UNIT), true],
        ["shared by graphs", (r) => bytesText(r.shared / UNIT), true],
      ], view.poolSizes)));
    }
  }
}

// The numbers of two or more views in one table; of two also their differences.
function comparison(views) {
  const states = views.map((view) => stateAt(view, view.peakReserved));
  const rows = [
    ["peak reserved", ...views.map((view) => view.reserved[view.peakReserved])],
    ["peak in use", ...views.map((view) => view.active[view.peakActive])],
    ["stranded at the peak", ...states.map((state) => state.stranded)],
    ["cached at the peak", ...states.map((state) => state.cached)],
  ];
  const lines = new Map();
  states.forEach((state, i) => state.lines.forEach((row) => {
    if (!lines.has(row.name)) lines.set(row.name, [row.name, ...views.map(() => 0)]);
    lines.get(row.name)[i + 1] = row.size;
  }));
  const spread = (row) => Math.max(...row.slice(1)) - Math.min(...row.slice(1));
  const moved = [...lines.values()].filter((row) => spread(row) > 0).sort((x, y) => spread(y) - spread(x)).slice(0, 6);
  const difference = ["difference", (r) => `${r[2] > r[1] ? "+" : r[2] < r[1] ? "−" : ""}${bytesText(Math.abs(r[2] - r[1]))}`, true];
  const columns = (name) => [
    [name, (r) => r[0]], ...views.map((view, i) => [view.label, (r) => bytesText(r[i + 1]), true]),
    ...(views.length === 2 ? [difference] : []),
  ];
  const names = views.map((view) => view.label);
  const title = `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`;
  return card(`${title[0].toUpperCase()}${title.slice(1)}, device ${views[0].device}`, element("div", { className: "tables" },
    tableOf(columns(""), rows), moved.length
      ? tableOf(columns("largest differences by line, at the peaks"), moved)
      : element("p", { className: "quiet", textContent: "Each line of code holds the same at all peaks." })));
}

async function show() {
  const views = await readViews();
  const main = document.getElementById("main"), nav = document.getElementById("devices");
  const devices = [...new Set(views.map((view) => view.device))];
  let panels = [];
  const open = (device) => {
    const chosen = views.filter((view) => view.device === device);
    const scale = Math.max(1, ...chosen.map((v) => Math.max(v.reserved[v.peakReserved], ...v.curves.map((c) => c.peak / UNIT))));
    panels = chosen.map((view) => new Panel(view, scale));
    const pair = element("div", { className: "pair" }, ...panels.map((panel) => panel.root));
    const compared = chosen.length > 1 ? [comparison(chosen)] : [];
    main.replaceChildren(...compared, pair);
    for (const panel of panels) panel.choose(panel.view.peakReserved);
  };
  if (devices.length > 1) nav.append(choice(devices.map((d) => [d, `device ${d}`]), devices[0], open));
  open(devices[0]);
  addEventListener("resize", () => panels.forEach((panel) => { panel.timeline.refresh(); panel.map.draw(); }));
  document.body.dataset.ready = "true";
}

show().catch((error) => {
  document.getElementById("main").textContent = `This report cannot be shown: ${error.message}. It needs a browser of 2023 or newer.`;
  throw error;
});
