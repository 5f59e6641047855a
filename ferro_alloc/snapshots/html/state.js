// What a device held after an event: the rules of _state.py.

// Okabe and Ito's colours, which people with any colour vision tell apart, and two of Tol's; the last
// is for the rest.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#56b4e9", "#d55e00", "#cc79a7", "#f0e442", "#882255", "#332288", "#9a9fa5"];
const REST = COLOURS.length - 1;

// By kind: each kind has the same colour in every view. By tag or line: the largest at the peak have
// a colour each. `of` gives a block's place.
function grouping(view, mode) {
  if (mode === "kind") {
    const last = view.kinds.length - 1;
    const place = (kind) => (kind === last ? REST : Math.min(kind, REST));
    const labels = [];
    for (const kind of new Set(view.kind)) labels[place(kind)] = view.kinds[kind];
    labels[REST] = view.kinds[last];
    return { labels, of: (b) => place(view.kind[b]) };
  }
  const [names, column] = mode === "tag" ? [view.tags, view.tag] : [view.lines, view.stack];
  const sums = new Float64Array(names.length);
  forLive(view, view.peakActive, (b) => { sums[column[b]] += view.size[b]; });
  const order = [...names.keys()].filter((n) => sums[n] > 0).sort((a, b) => sums[b] - sums[a]);
  const place = new Uint8Array(names.length).fill(REST);
  const own = order.length > COLOURS.length ? order.slice(0, REST) : order.slice(0, COLOURS.length);
  own.forEach((n, i) => { place[n] = i; });
  const labels = own.map((n) => names[n]);
  labels[REST] = labels[REST] ?? "everything else";
  return { labels, of: (b) => place[column[b]] };
}

function forLive(view, event, use) {
  const { born, died } = view;
  for (let b = 0; b < born.length; b++) if (born[b] <= event && event < died[b]) use(b);
}

function firstFrom(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

function stateAt(view, event) {
  const live = [];
  forLive(view, event, (b) => live.push(b));
  live.sort((a, b) => view.address[a] - view.address[b]);
  const addresses = Float64Array.from(live, (b) => view.address[b]);
  const state = { event, live, segments: [], units: [], reserved: 0, active: 0, stranded: 0, cached: 0 };
  const pinned = new Map();
  const places = new Map();
  for (let r = 0; r < view.rangeSize.length; r++) {
    if (view.rangeBegin[r] > event || event >= view.rangeEnd[r]) continue;
    const start = view.rangeAddress[r], size = view.rangeSize[r], unit = view.rangeUnit[r];
    const shares = new Map();
    const inside = [];
    let active = 0;
    const last = firstFrom(addresses, start + size);
    for (let i = Math.max(firstFrom(addresses, start) - 1, 0); i < last; i++) {
      const b = live[i];
      const begin = Math.max(view.address[b], start);
      const end = Math.min(view.address[b] + view.size[b], start + size);
      if (begin >= end) continue;
      active += end - begin;
      inside.push([b, begin, end]);
      const first = Math.floor((begin - start) / unit), final = Math.floor((end - 1 - start) / unit);
      for (let n = first; n <= final; n += Math.max(final - first, 1)) {
        const low = start + n * unit;
        if (!shares.has(n)) shares.set(n, []);
        shares.get(n).push([b, Math.min(end, low + unit) - Math.max(begin, low)]);
      }
    }
    let stranded = 0;
    for (const [n, parts] of shares) {
      const length = Math.min(unit, size - n * unit);
      const used = parts.reduce((sum, [, part]) => sum + part, 0);
      if (length <= used) continue;
      stranded += length - used;
      state.units.push([r, start + n * unit, length]);
      for (const [b, part] of parts) pinned.set(b, (pinned.get(b) ?? 0) + (length - used) * part / used);
    }
    state.segments.push({ range: r, start, size, inside });
    state.reserved += size;
    state.active += active;
    state.stranded += stranded;
    const key = `${view.rangePool[r]} ${view.rangeStream[r]}`;
    const place = places.get(key) ?? { pool: view.rangePool[r], stream: view.rangeStream[r], reserved: 0, active: 0, stranded: 0 };
    place.reserved += size;
    place.active += active;
    place.stranded += stranded;
    places.set(key, place);
  }
  state.cached = state.reserved - state.active - state.stranded;
  state.places = [...places.values()].sort((a, b) => b.reserved - a.reserved);
  state.lines = byLine(view, live, pinned);
  return state;
}

function byLine(view, live, pinned) {
  const lines = new Map();
  for (const b of live) {
    const stack = view.stack[b];
    let line = lines.get(view.lines[stack]);
    if (!line) lines.set(view.lines[stack], line = { name: view.lines[stack], stack, block: b, blocks: 0, size: 0, stranded: 0 });
    if (view.size[b] > view.size[line.block]) line.block = b;
    line.blocks += 1;
    line.size += view.size[b];
    line.stranded += pinned.get(b) ?? 0;
  }
  return [...lines.values()];
}
