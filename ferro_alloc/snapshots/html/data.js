// The columns of each view, as typed arrays. Sizes and addresses are in units of 512 bytes.

const UNIT = 512;
const ARRAYS = { I: Uint32Array, i: Int32Array, H: Uint16Array, B: Uint8Array, d: Float64Array };

async function unpack([code, text]) {
  const packed = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const width = ARRAYS[code].BYTES_PER_ELEMENT;
  const count = planes.length / width;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0, from = 0; plane < width; plane++) {
    for (let i = 0, to = plane; i < count; i++, to += width) bytes[to] = planes[from++];
  }
  return new ARRAYS[code](bytes.buffer);
}

async function readViews() {
  const views = JSON.parse(document.getElementById("data").textContent);
  for (const view of views) {
    const names = Object.keys(view.columns);
    const arrays = await Promise.all(names.map((name) => unpack(view.columns[name])));
    names.forEach((name, i) => { view[name] = arrays[i]; });
    delete view.columns;
    prepare(view);
  }
  return views;
}

// What is asked for again and again: which block an event began or ended, and sums after it.
function prepare(view) {
  const count = view.count = Math.max(view.events, 1);
  view.begins = new Int32Array(count).fill(-1);
  view.ends = new Int32Array(count).fill(-1);
  view.first = [];
  for (let b = 0; b < view.size.length; b++) {
    if (view.born[b] < 0) view.first.push(b); else view.begins[view.born[b]] = b;
    if (view.died[b] >= 0 && view.died[b] < count) view.ends[view.died[b]] = b;
  }
  view.active = new Float64Array(count);
  let live = view.first.reduce((sum, b) => sum + view.size[b], 0);
  for (let e = 0; e < count; e++) {
    if (view.ends[e] >= 0) live -= view.size[view.ends[e]];
    if (view.begins[e] >= 0) live += view.size[view.begins[e]];
    view.active[e] = live;
  }
  view.reserved = new Float64Array(count);
  let held = 0;
  for (let r = 0; r < view.rangeSize.length; r++) {
    if (view.rangeBegin[r] < 0) held += view.rangeSize[r];
    else view.reserved[view.rangeBegin[r]] += view.rangeSize[r];
    if (view.rangeEnd[r] < count) view.reserved[view.rangeEnd[r]] -= view.rangeSize[r];
  }
  for (let e = 0; e < count; e++) view.reserved[e] = held += view.reserved[e];
  view.peakActive = indexOfMost(view.active);
  view.peakReserved = indexOfMost(view.reserved);
  view.seconds = view.time.length ? view.time[view.time.length - 1] / 1e5 : 0;
}

function indexOfMost(numbers) {
  let at = 0;
  for (let i = 1; i < numbers.length; i++) if (numbers[i] > numbers[at]) at = i;
  return at;
}

function bytesText(units) {
  const bytes = units * UNIT;
  for (const [size, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (Math.abs(bytes) >= size) return `${(bytes / size).toFixed(Math.abs(bytes) < 10 * size ? 2 : 1)} ${name}`;
  }
  return `${bytes} B`;
}

function secondsText(view, event) {
  return ticksText(view, view.time.length ? view.time[event] : 0);
}

// Times are in units of 10 microseconds.
function ticksText(view, ticks) {
  return view.seconds < 1 ? `${(ticks / 100).toFixed(1)} ms` : `${(ticks / 1e5).toFixed(2)} s`;
}
