// The map: all reserved addresses after one event, one segment behind the other, in rows.

const ROWS = 22;
const ROW = 15;
const GAP = 3;

class AddressMap {
  constructor(panel, canvas) {
    this.panel = panel;
    this.canvas = canvas;
    canvas.addEventListener("pointermove", (event) => this.tell(event));
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("click", (event) => {
      const found = this.find(event);
      panel.highlight(found?.block === undefined ? null : panel.view.lines[panel.view.stack[found.block]]);
    });
  }

  // Segments by pool, stream and address, each with its place on the tape.
  lay() {
    const { view, state } = this.panel;
    const key = (s) => view.rangePool[s.range] * 65536 + view.rangeStream[s.range];
    this.segments = [...state.segments].sort((a, b) => key(a) - key(b) || a.start - b.start);
    this.offsets = new Map();
    let offset = 0;
    this.places = Float64Array.from(this.segments, (s) => {
      this.offsets.set(s.range, offset - s.start);
      offset += s.size;
      return offset - s.size;
    });
    this.length = Math.max(offset, 1);
  }

  // A piece of the tape as one rectangle for each row that it touches.
  pieces(offset, size, use) {
    const row = this.perRow;
    let left = size;
    while (left > 0) {
      const n = Math.min(Math.floor(offset / row), ROWS - 1);
      const part = Math.min(left, Math.max((n + 1) * row - offset, 1));
      use((offset - n * row) / row * this.width, n * (ROW + GAP), part / row * this.width);
      offset += part;
      left -= part;
    }
  }

  draw() {
    const { view, state, group, line: chosen } = this.panel;
    this.lay();
    const { context, width } = surface(this.canvas, ROWS * (ROW + GAP));
    this.width = width;
    this.perRow = Math.ceil(this.length / ROWS);
    const style = getComputedStyle(document.body);
    const cached = style.getPropertyValue("--cached").trim();
    const card = style.getPropertyValue("--card").trim();
    const hatch = hatching(context, cached, style.getPropertyValue("--hatch").trim());
    const fill = (offset, size, colour, alpha = 1) => {
      context.fillStyle = colour;
      context.globalAlpha = alpha;
      this.pieces(offset, size, (x, y, w) => context.fillRect(x, y, Math.max(w, 0.6), ROW));
      context.globalAlpha = 1;
    };
    fill(0, this.length, cached);
    for (const [range, start, size] of state.units) fill(this.offsets.get(range) + start, size, hatch);
    context.fillStyle = card;
    for (const segment of this.segments) {
      const shift = this.offsets.get(segment.range);
      for (const [b, begin, end] of segment.inside) {
        const dim = chosen !== null && view.lines[view.stack[b]] !== chosen;
        // What is stranded behind a block must not show through it.
        if (dim) fill(shift + begin, end - begin, card);
        fill(shift + begin, end - begin, COLOURS[group.of(b)], dim ? 0.22 : 1);
        if ((end - begin) / this.perRow * width > 3) {
          context.fillStyle = card;
          this.pieces(shift + begin, 1, (x, y) => context.fillRect(x, y, 0.7, ROW));
        }
      }
    }
    // Where one segment ends; pages that came one by one lie together.
    context.fillStyle = style.getPropertyValue("--ink").trim();
    let end = -1;
    this.segments.forEach((segment, i) => {
      if (view.allocator === "native" || segment.start !== end) this.pieces(this.places[i], 1, (x, y) => context.fillRect(x - 0.5, y - 1, 1.2, ROW + 2));
      end = segment.start + segment.size;
    });
  }

  find(pointer) {
    const box = this.canvas.getBoundingClientRect();
    const x = pointer.clientX - box.left, n = Math.floor((pointer.clientY - box.top) / (ROW + GAP));
    const offset = n * this.perRow + x / this.width * this.perRow;
    if (!this.segments?.length || n < 0 || offset >= this.length) return null;
    const at = Math.max(firstFrom(this.places, offset + 1e-6) - 1, 0);
    const segment = this.segments[at];
    const address = offset - this.offsets.get(segment.range);
    const hit = segment.inside.find(([, begin, end]) => begin <= address && address < end);
    return { segment, address, block: hit?.[0] };
  }

  tell(pointer) {
    const { view, state } = this.panel;
    const found = this.find(pointer);
    if (!found) return hideTip();
    const r = found.segment.range;
    const where = `${view.pools[view.rangePool[r]]}, stream ${view.streams[view.rangeStream[r]]}`;
    if (found.block === undefined) {
      const stuck = state.units.some(([range, start, size]) => range === r && start <= found.address && found.address < start + size);
      return showTip(pointer, [stuck ? "free, but stranded beside live blocks" : "free, in a whole unit that can go back", where]);
    }
    const b = found.block, until = view.died[b];
    const life = (event) => secondsText(view, event);
    return showTip(pointer, [
      `${bytesText(view.size[b])}, ${view.kinds[view.kind[b]]}${view.tag[b] ? `, ${view.tags[view.tag[b]]}` : ""}`,
      `from ${view.born[b] < 0 ? "before the recording" : life(view.born[b])} to ${until < view.events ? life(until) : "its end"}`,
      where,
      ...(view.frames[view.stack[b]].length ? view.frames[view.stack[b]] : [view.lines[view.stack[b]]]).slice(0, 6),
    ]);
  }
}

function hatching(context, paper, ink) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.fillStyle = paper;
  pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = ink;
  pen.lineWidth = 1.4;
  for (const shift of [-6, 0, 6]) line(pen, [[shift, 6], [shift + 6, 0]]);
  return context.createPattern(tile, "repeat");
}
