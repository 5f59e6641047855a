// The time line: bytes in use, stacked, and reserved bytes above them.

const DASHES = [[6, 3], [2, 3], [10, 3, 2, 3]];

// What each column of pixels shows: of its events the one with most bytes in use.
function columnsOf(view, group, from, to, byTime, width) {
  const groups = COLOURS.length;
  const sums = new Float64Array(groups);
  const stacked = new Float64Array(width * groups);
  const reserved = new Float64Array(width);
  const most = new Float64Array(width).fill(-1);
  const start = byTime ? view.time[from] : from;
  const span = Math.max((byTime ? view.time[to] : to) - start, 1);
  for (const b of view.first) sums[group.of(b)] += view.size[b];
  let column = 0;
  for (let e = 0; e <= to; e++) {
    if (view.ends[e] >= 0) sums[group.of(view.ends[e])] -= view.size[view.ends[e]];
    if (view.begins[e] >= 0) sums[group.of(view.begins[e])] += view.size[view.begins[e]];
    if (e < from) continue;
    const at = byTime ? view.time[e] : e;
    const x = Math.min(Math.floor((at - start) / span * (width - 1)), width - 1);
    while (column < x) {
      // Nothing happens in between.
      column += 1;
      stacked.copyWithin(column * groups, (column - 1) * groups, column * groups);
      reserved[column] = e ? view.reserved[e - 1] : 0;
      if (e) for (let g = 0; g < groups; g++) stacked[column * groups + g] = last[g];
    }
    if (view.active[e] > most[x]) {
      most[x] = view.active[e];
      stacked.set(sums, x * groups);
    }
    reserved[x] = Math.max(reserved[x], view.reserved[e]);
    last.set(sums);
  }
  return { stacked, reserved };
}
const last = new Float64Array(COLOURS.length);

function axisStep(most) {
  const rough = most / 4, power = 2 ** Math.floor(Math.log2(rough));
  return rough / power > 1.5 ? 2 * power : power;
}

class Timeline {
  constructor(panel, canvas) {
    this.panel = panel;
    this.canvas = canvas;
    this.from = 0;
    this.to = panel.view.count - 1;
    this.byTime = false;
    let drag = null, held = null;
    const position = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("pointerdown", (event) => {
      drag = event.shiftKey ? null : position(event);
      held = event.shiftKey ? { at: position(event), from: this.from } : null;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (held) return this.pan(held.from + (held.at - position(event)) / (this.width - 1) * (this.to - this.from));
      this.mark = drag === null ? null : [drag, position(event)];
      if (drag !== null) this.draw();
      this.tell(event, this.eventAt(position(event)));
    });
    canvas.addEventListener("pointerleave", () => { hideTip(); drag = held = this.mark = null; this.draw(); });
    canvas.addEventListener("pointerup", (event) => {
      if (held) return void (held = null);
      const ends = [drag ?? position(event), position(event)].sort((a, b) => a - b);
      drag = this.mark = null;
      if (ends[1] - ends[0] < 6) return panel.choose(this.eventAt(position(event)));
      [this.from, this.to] = [this.eventAt(ends[0]), Math.max(this.eventAt(ends[1]), this.eventAt(ends[0]) + 1)];
      this.to = Math.min(this.to, panel.view.count - 1);
      this.refresh();
    });
    canvas.addEventListener("dblclick", () => { [this.from, this.to] = [0, panel.view.count - 1]; this.refresh(); });
  }

  // As many events as now, from another one on.
  pan(from) {
    const shown = this.to - this.from;
    this.from = Math.min(Math.max(Math.round(from), 0), this.panel.view.count - 1 - shown);
    this.to = this.from + shown;
    this.refresh();
  }

  refresh() {
    this.columns = null;
    this.draw();
  }

  x(event) {
    const { time } = this.panel.view;
    const [start, end] = this.byTime ? [time[this.from], time[this.to]] : [this.from, this.to];
    return LEFT + ((this.byTime ? time[event] : event) - start) / Math.max(end - start, 1) * (this.width - 1);
  }

  eventAt(x) {
    const { time } = this.panel.view;
    const share = Math.min(Math.max((x - LEFT) / (this.width - 1), 0), 1);
    if (!this.byTime) return Math.round(this.from + share * (this.to - this.from));
    const event = firstFrom(time, time[this.from] + share * (time[this.to] - time[this.from]));
    return Math.min(Math.max(event, this.from), this.to);
  }

  draw() {
    const { view, group } = this.panel;
    const { context, width, height } = surface(this.canvas, 270);
    this.width = Math.floor(width - LEFT - 4);
    this.columns ??= columnsOf(view, group, this.from, this.to, this.byTime, this.width);
    const { stacked, reserved } = this.columns;
    const most = this.panel.scale * 1.04, floor = height - 22;
    const y = (units) => floor - units / most * (floor - 8);
    const style = getComputedStyle(document.body);
    const colour = (name) => style.getPropertyValue(name).trim();
    context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = colour("--quiet");
    context.strokeStyle = colour("--rule");
    const step = axisStep(most);
    context.textAlign = "right";
    for (let tick = 0; tick <= most; tick += step) {
      context.fillText(tick ? bytesText(tick).replace(/\.0+ /, " ") : "0", LEFT - 8, y(tick));
      line(context, [[LEFT, y(tick)], [LEFT + this.width, y(tick)]]);
    }
    for (let x = 0; x < this.width; x++) {
      for (let g = 0, sum = 0; g < COLOURS.length; g++) {
        const part = stacked[x * COLOURS.length + g];
        if (part <= 0) continue;
        context.fillStyle = COLOURS[g];
        context.fillRect(LEFT + x, y(sum + part), 1.3, y(sum) - y(sum + part));
        sum += part;
      }
    }
    context.lineWidth = 1.5;
    view.curves.forEach((curve, i) => {
      context.setLineDash(DASHES[i % DASHES.length]);
      context.strokeStyle = colour("--quiet");
      const points = curve.events.map((e, n) => [e, curve.bytes[n] / UNIT]).filter(([e]) => e >= this.from && e <= this.to);
      // What was held stays until the next sample.
      line(context, points.flatMap(([e, units], n) => [[this.x(e), y(points[Math.max(n - 1, 0)][1])], [this.x(e), y(units)]]));
    });
    context.setLineDash([]);
    context.strokeStyle = colour("--ink");
    line(context, Array.from(reserved, (units, x) => [LEFT + x, y(units)]));
    context.fillStyle = colour("--quiet");
    const [start, end] = [view.time[this.from] ?? 0, view.time[this.to] ?? 0];
    const label = (share) => this.byTime
      ? ticksText(view, start + share * (end - start))
      : `event ${Math.round(this.from + share * (this.to - this.from)).toLocaleString("en")}`;
    [0, 0.25, 0.5, 0.75, 1].forEach((share, i) => {
      const at = LEFT + share * (this.width - 1);
      context.textAlign = i === 0 ? "left" : i === 4 ? "right" : "center";
      context.fillText(label(share), at, height - 8);
    });
    if (this.panel.state) {
      const at = this.x(this.panel.state.event);
      context.lineWidth = 2;
      context.strokeStyle = colour("--ink");
      if (at >= LEFT - 1 && at <= LEFT + this.width + 1) line(context, [[at, 2], [at, floor]]);
    }
    if (this.mark) {
      context.fillStyle = "rgba(0, 114, 178, 0.18)";
      context.fillRect(this.mark[0], 0, this.mark[1] - this.mark[0], floor);
    }
  }

  tell(pointer, event) {
    const { view, group } = this.panel;
    const sums = new Float64Array(COLOURS.length);
    forLive(view, event, (b) => { sums[group.of(b)] += view.size[b]; });
    const parts = [...sums.keys()].filter((g) => sums[g] > 0).sort((a, b) => sums[b] - sums[a]).slice(0, 4);
    showTip(pointer, [
      `${secondsText(view, event)}, event ${event.toLocaleString("en")}`,
      `in use ${bytesText(view.active[event])}, reserved ${bytesText(view.reserved[event])}`,
      ...parts.map((g) => `  ${bytesText(sums[g])}  ${group.labels[g]}`),
    ]);
  }
}
