// Places: each open box lays its own children out in layers, innermost boxes first (Sugiyama, Tagawa, Toda 1981).
//
// Layers are longest paths; long ways get a bend in each layer they pass; the order inside layers comes from a few
// sweeps of averages; places come from averages of neighbours, pushed apart optimally (pool adjacent violators).
// Every step is linear in boxes and bends, so a model of any depth costs the sum of its boxes' insides.
const W = new Float64Array(N);
const H = new Float64Array(N);
const X = new Float64Array(N);
const Y = new Float64Array(N);
// Where ways enter and leave a box, along its edge.
const inAt = new Float64Array(N);
const outAt = new Float64Array(N);
const lines = new Array(N).fill(null);
const tags = new Array(N).fill(null);
const isStale = new Uint8Array(N).fill(1);
let isSideways = false;

const HEAD = 24;
const PAD = 12;
const GAP = 16;
const ROW = 30;
const MOST_READERS = 8;
const LONGEST = 60;
const MOST_BENDS = 6000;
// Lines from one column to the next: room for each, and more than this are not turned.
const TRACK = 8;
const MOST_TURNS = 12;

// Widths of texts, as the reader's own font draws them.
const pen = html("canvas", {}).getContext("2d");
const fontOf = (size, weight) => weight + " " + size + "px " + getComputedStyle(document.body).fontFamily;
const BOLD = fontOf(12, 600);
const PLAIN = fontOf(10.5, 400);
const LABEL = fontOf(9, 400);
const widths = new Map();
function widthOf(words, font) {
  const key = font + words;
  if (!widths.has(key)) {
    pen.font = font;
    widths.set(key, pen.measureText(words).width);
  }
  return widths.get(key);
}

const shown = (box) => {
  const times = pile(box);
  let title = text(G.title[box]);
  if (times > 1) {
    const siblings = kids[G.parent[box]];
    const last = text(G.title[siblings[siblings.indexOf(box) + times - 1]]);
    const digits = /^(.*?)(\d+)$/;
    const [one, other] = [digits.exec(title), digits.exec(last)];
    if (title !== last) title = one && other && one[1] === other[1] ? title + "–" + other[2] : title + " … " + last;
  }
  return title.length > 34 ? title.slice(0, 20) + "…" + title.slice(-12) : title;
};
const small = (box) => {
  const words = text(G.subtitle[box]);
  return words.length > 38 ? words.slice(0, 24) + "…" + words.slice(-12) : words;
};
const tagged = (box) => {
  const names = tags[box] || [];
  if (!names.length) return "";
  const words = names.slice(0, 2).join(", ");
  return "← " + (words.length > 30 ? words.slice(0, 28) + "…" : words) + (names.length > 2 ? " +" + (names.length - 2) : "");
};
const cutOf = (box) => (isOpen[box] ? "" : cutWords(box));
const badge = (box) => (pile(box) > 1 ? "×" + pile(box) : "");

function stale(box) {
  for (let at = box; ; at = G.parent[at]) {
    isStale[at] = 1;
    if (!at) return;
  }
}

// Lays out everything that changed, from the inside out.
function layout() {
  const order = [];
  const stack = [0];
  while (stack.length) {
    const box = stack.pop();
    if (!isStale[box]) continue;
    order.push(box);
    if (isOpen[box]) for (const kid of kids[box]) if (drawn(kid) === kid) stack.push(kid);
  }
  for (let at = order.length - 1; at >= 0; at--) {
    const box = order[at];
    if (isOpen[box] && kids[box].length) inside(box);
    else closed(box);
    isStale[box] = 0;
  }
}

function closed(box) {
  const head = widthOf(shown(box), BOLD) + (badge(box) ? 42 : 0);
  const mark = stageOf(box) >= 0 || cutOf(box) ? 4 : 0;
  W[box] = Math.max(56, Math.ceil(Math.max(head, widthOf(small(box), PLAIN), widthOf(tagged(box), PLAIN), widthOf(cutOf(box), PLAIN)) + 24 + mark));
  const isTerminal = G.family[box] >= 9;
  H[box] = (isTerminal ? 26 : small(box) ? 42 : 30) + (tags[box] ? 13 : 0) + (cutOf(box) ? 13 : 0);
  inAt[box] = outAt[box] = (isSideways ? H[box] : W[box]) / 2;
}

// One box's inside, in main (along the flow) and cross coordinates.
function inside(box) {
  const items = kids[box].filter((kid) => drawn(kid) === kid);
  const place = new Map();
  items.forEach((item, at) => place.set(item, at));
  const entry = items.length;
  const exit = items.length + 1;
  const readers = new Map();
  const joined = new Map();
  for (const [from, to, ...wires] of ways[box]) {
    const a = from < 0 ? entry : place.get(drawn(from));
    const b = to < 0 ? exit : place.get(drawn(to));
    if (a === b || (a < entry && b < entry && a > b)) continue;
    const key = a * (exit + 1) + b;
    if (joined.has(key)) joined.get(key).wires.push(...wires);
    else joined.set(key, { a, b, wires });
  }
  for (const edge of joined.values()) {
    for (const wire of edge.wires) readers.set(wire, (readers.get(wire) || 0) + 1);
  }
  // A tensor with many readers is named at them instead of drawn.
  const named = new Map();
  let edges = [];
  for (const edge of joined.values()) {
    if (edge.b < entry && edge.wires.every((wire) => readers.get(wire) > MOST_READERS)) {
      if (!named.has(edge.b)) named.set(edge.b, []);
      named.get(edge.b).push(edge);
    } else edges.push(edge);
  }
  for (const item of items) tags[item] = null;
  const name = (edge) => {
    const source = text(G.title[edge.a < entry ? items[edge.a] : G.wires[edge.wires[0]][0]]);
    const item = items[edge.b];
    tags[item] = tags[item] || [];
    if (!tags[item].includes(source)) tags[item].push(source);
  };
  const firsts = new Set();
  for (const [, list] of [...named].sort((a, b) => a[0] - b[0])) {
    for (const edge of list) {
      // The first reader keeps its line, so that the source does not hang in the air.
      if (firsts.has(edge.a)) name(edge);
      else edges.push(edge);
      firsts.add(edge.a);
    }
  }
  const n = items.length + 2;
  const [rank, isUsed] = ranks(n, entry, exit, edges);
  // So is one that would pass by very many boxes.
  let bends = 0;
  edges.sort((one, other) => rank[one.b] - rank[one.a] - (rank[other.b] - rank[other.a]) || one.a - other.a || one.b - other.b);
  edges = edges.filter((edge) => {
    const length = rank[edge.b] - rank[edge.a];
    bends += length - 1;
    if (length === 1 || edge.b >= entry || (length <= LONGEST && bends <= MOST_BENDS)) return true;
    name(edge);
    return false;
  });
  for (const item of items) if (!(isOpen[item] && kids[item].length)) closed(item);
  const nodes = [];
  for (let at = 0; at < n; at++) {
    const item = items[at];
    const size = item === undefined ? 0 : isSideways ? H[item] : W[item];
    const depth = item === undefined ? 0 : isSideways ? W[item] : H[item];
    // Where lines arrive and leave, from the middle.
    const [into, out] = item === undefined ? [0, 0] : [inAt[item] - size / 2, outAt[item] - size / 2];
    nodes.push({ at, rank: rank[at], size, depth, into, out, x: 0, before: [], after: [], isBend: false, isUsed: isUsed[at] });
  }
  for (const edge of edges) bend(nodes, edge, rank);
  const layers = [];
  for (const node of nodes) {
    if (!node.isUsed) continue;
    while (layers.length <= node.rank) layers.push([]);
    layers[node.rank].push(node);
  }
  arrange(layers);
  straighten(layers);
  settle(box, items, nodes, layers, edges, entry, exit);
}

// Longest paths from the sources; what has no source stands just before its first reader.
function ranks(n, entry, exit, edges) {
  const rank = new Int32Array(n);
  const isUsed = new Uint8Array(n).fill(1);
  const hasIn = new Uint8Array(n);
  const after = Array.from({ length: n }, () => []);
  isUsed[entry] = isUsed[exit] = 0;
  for (const { a, b } of edges) {
    after[a].push(b);
    hasIn[b] = 1;
    isUsed[a] = isUsed[b] = 1;
  }
  const first = isUsed[entry] ? 1 : 0;
  for (let at = 0; at < entry; at++) rank[at] = first;
  const push = (at) => {
    for (const b of after[at]) rank[b] = Math.max(rank[b], rank[at] + 1);
  };
  push(entry);
  for (let at = 0; at < entry; at++) push(at);
  for (let at = entry - 1; at >= 0; at--) {
    if (hasIn[at] || !after[at].length) continue;
    rank[at] = Math.max(first, Math.min(...after[at].map((b) => rank[b])) - 1);
  }
  let last = 0;
  for (let at = 0; at < entry; at++) last = Math.max(last, rank[at] + 1);
  rank[exit] = Math.max(rank[exit], last);
  return [rank, isUsed];
}

// Gives a way a bend in each layer that it passes; ways of one source share theirs.
function bend(nodes, edge, rank) {
  const source = nodes[edge.a];
  const target = nodes[edge.b];
  source.bends = source.bends || new Map();
  let from = source;
  edge.way = [source];
  for (let layer = rank[edge.a] + 1; layer < rank[edge.b]; layer++) {
    let node = source.bends.get(layer);
    if (!node) {
      node = { at: -1, rank: layer, size: 6, depth: 0, into: 0, out: 0, x: 0, before: [from], after: [], isBend: true, isUsed: 1 };
      from.after.push(node);
      source.bends.set(layer, node);
      nodes.push(node);
    }
    edge.way.push(node);
    from = node;
  }
  from.after.push(target);
  target.before.push(from);
  edge.way.push(target);
}

function arrange(layers) {
  const number = (layer) => layer.forEach((node, at) => (node.pos = at));
  layers.forEach(number);
  const sweep = (layer, side) => {
    for (const node of layer) {
      const near = node[side];
      node.key = near.length ? near.reduce((sum, other) => sum + other.pos, 0) / near.length : node.pos;
    }
    layer.sort((a, b) => a.key - b.key || a.pos - b.pos);
    number(layer);
  };
  for (let round = 0; round < 3; round++) {
    for (let at = 1; at < layers.length; at++) if (layers[at].length > 1) sweep(layers[at], "before");
    for (let at = layers.length - 2; at >= 0; at--) if (layers[at].length > 1) sweep(layers[at], "after");
  }
}

function straighten(layers) {
  for (const layer of layers) {
    let x = 0;
    for (const node of layer) {
      node.x = x + node.size / 2;
      x += node.size + GAP;
    }
    for (const node of layer) node.x -= (x - GAP) / 2;
  }
  const pull = (layer, side) => {
    const [mine, other] = side === "before" ? ["into", "out"] : ["out", "into"];
    // Wide frames stand under each other; by their ports, a chain of them would walk off sideways.
    const port = (node, which) => (node.size > 160 ? 0 : node[which]);
    for (const node of layer) {
      let sum = 0;
      let weight = 0;
      for (const near of node[side]) {
        const w = node.isBend && near.isBend ? 4 : 1;
        sum += w * (near.x + port(near, other) - port(node, mine));
        weight += w;
      }
      node.want = weight ? sum / weight : node.x;
      // Long lines stay straight, and so do chains.
      node.weight = !weight ? 0.1 : node.isBend ? 2 : node[side].length === 1 ? 1.5 : 1;
    }
    apart(layer);
  };
  for (let round = 0; round < 5; round++) {
    for (let at = layers.length - 2; at >= 0; at--) pull(layers[at], "after");
    for (let at = 1; at < layers.length; at++) pull(layers[at], "before");
  }
}

// Moves nodes as near to where they want to be as their widths allow: least squares, in one pass.
function apart(layer) {
  const blocks = [];
  let offset = 0;
  layer.forEach((node, at) => {
    if (at) offset += layer[at - 1].size / 2 + GAP + node.size / 2;
    node.offset = offset;
    let block = { sum: node.weight * (node.want - offset), weight: node.weight, from: at };
    while (blocks.length && blocks[blocks.length - 1].sum / blocks[blocks.length - 1].weight > block.sum / block.weight) {
      const before = blocks.pop();
      block = { sum: before.sum + block.sum, weight: before.weight + block.weight, from: before.from };
    }
    blocks.push(block);
  });
  blocks.forEach((block, number) => {
    const end = number + 1 < blocks.length ? blocks[number + 1].from : layer.length;
    for (let at = block.from; at < end; at++) layer[at].x = block.sum / block.weight + layer[at].offset;
  });
}

// Extent across the flow of some layers.
function extent(layers) {
  let low = Infinity;
  let high = -Infinity;
  for (const layer of layers) {
    for (const node of layer) {
      low = Math.min(low, node.x - node.size / 2);
      high = Math.max(high, node.x + node.size / 2);
    }
  }
  return low > high ? [0, 0] : [low, high];
}

// Where long flows turn into columns beside each other: the first layer of each column. As in the pictures of `graph`.
function columns(layers, lengths) {
  const [longest, slenderest, wanted] = isSideways ? [2200, 4, 1.6] : [1500, 2.2, 0.75];
  const total = lengths.reduce((a, b) => a + b, 0);
  const [low, high] = extent(layers);
  if (total <= longest || total <= slenderest * (high - low)) return [0];
  // Lines that a column's end would turn: one for each tensor.
  const crossing = layers.map((layer) => layer.filter((node) => node.after.length).length);
  let best = [0];
  let least = Infinity;
  for (let n = 2; n <= Math.min(24, total / 400); n++) {
    const target = total / n;
    const starts = [0];
    let sum = 0;
    let left = total;
    let at = -1;
    let cheapest = Infinity;
    for (let layer = 0; layer + 1 < layers.length; layer++) {
      sum += lengths[layer];
      left -= lengths[layer];
      const cost = 3 * Math.abs(sum / target - 1) + crossing[layer];
      if (sum > 0.6 * target && crossing[layer] <= MOST_TURNS && cost < cheapest) [at, cheapest] = [layer, cost];
      if (at < 0 || sum <= 1.3 * target) continue;
      starts.push(at + 1);
      // Goes back to where the column ends.
      while (layer > at) left += lengths[layer--];
      [sum, at, cheapest] = [0, -1, Infinity];
      if (left < 1.15 * target) break;
    }
    const ends = [...starts.slice(1), layers.length];
    const sizes = starts.map((start, number) => lengths.slice(start, ends[number]).reduce((a, b) => a + b, 0));
    const most = Math.max(...sizes);
    if (starts.length < 2 || most > 0.75 * total || most > 1.8 * target) continue;
    const breadth = starts.reduce((sum, start, number) => {
      const [low, high] = extent(layers.slice(start, ends[number]));
      return sum + high - low + 60;
    }, 0);
    const turns = Math.max(...starts.slice(1).map((start) => crossing[start - 1]));
    const error = Math.abs(Math.log(most / breadth / wanted)) + 0.06 * turns + 1 - total / (starts.length * most);
    if (error < least) [best, least] = [starts, error];
  }
  return best;
}

// Turns layers into places inside the box, and ways into points.
function settle(box, items, nodes, layers, edges, entry, exit) {
  const head = box ? HEAD : 4;
  const [startMain, startCross] = isSideways ? [PAD, head + 4] : [head + 2, PAD];
  const least = box ? Math.ceil(widthOf(shown(box), BOLD) + widthOf(small(box), PLAIN) + (badge(box) ? 74 : 34)) : 0;
  const lengths = layers.map((layer, number) => {
    layer.depth = layer.reduce((most, node) => Math.max(most, node.depth), 0);
    if (number + 1 === layers.length) return layer.depth;
    const isBorder = layer.depth === 0 && number === 0;
    return layer.depth + (isBorder || layers[number + 1].length === 0 || layers[number + 1].every((node) => !node.depth) ? 16 : ROW);
  });
  const starts = columns(layers, lengths);
  let main = startMain;
  let side = startCross;
  starts.forEach((start, number) => {
    const end = starts[number + 1] ?? layers.length;
    const [low, high] = extent(layers.slice(start, end));
    const spare = isSideways || starts.length > 1 ? 0 : Math.max(0, least - (high - low) - 2 * PAD) / 2;
    let at = startMain;
    // Room above for lines that come from the column before.
    if (start) at += 12 + TRACK * layers[start - 1].turning.length;
    for (let layer = start; layer < end; layer++) {
      layers[layer].start = at;
      layers[layer].shift = side - low + spare;
      at += lengths[layer];
    }
    side += high - low + 2 * spare;
    if (end < layers.length) {
      // The line nearest to the gutter turns first and ends up outermost.
      const turning = layers[end - 1].filter((node) => node.after.length).reverse();
      Object.assign(layers[end - 1], { turning, bottom: at - lengths[end - 1] + layers[end - 1].depth + 10, gutter: side + 12 });
      at += 10 + TRACK * turning.length - ROW + 10;
      side += 24 + TRACK * turning.length;
    }
    main = Math.max(main, at);
  });
  const cross = (node) => node.x + layers[node.rank].shift;
  main += nodes[exit].isUsed ? 2 : PAD;
  items.forEach((item, at) => {
    const node = nodes[at];
    const layer = layers[node.rank];
    const along = layer.start + (layer.depth - node.depth) / 2;
    const across = cross(node) - node.size / 2;
    [X[item], Y[item]] = isSideways ? [along, across] : [across, along];
  });
  const width = side + PAD;
  [W[box], H[box]] = isSideways ? [Math.max(main, least), width] : [Math.max(width, least), main];
  inAt[box] = nodes[entry].isUsed ? cross(nodes[entry]) : width / 2;
  outAt[box] = nodes[exit].isUsed ? cross(nodes[exit]) : width / 2;
  const end = isSideways ? W[box] : H[box];
  lines[box] = edges.map(({ a, b, wires, way }) => {
    const points = [];
    way.forEach((node, step) => {
      const layer = layers[node.rank];
      const before = way[step - 1];
      const turning = before && layers[before.rank].turning;
      if (turning) {
        const { bottom, gutter } = layers[before.rank];
        const track = TRACK * turning.indexOf(before);
        const top = startMain + 4 + track;
        const [from, to] = [points[points.length - 1][0], cross(node) + node.into];
        points.push([from, bottom + track, true], [gutter + track, bottom + track, true], [gutter + track, top, true], [to, top, true]);
      }
      if (node.at === entry) points.push([cross(node), 0]);
      else if (node.at === exit) points.push([cross(node), end]);
      else if (node.isBend) points.push([cross(node), layer.start], [cross(node), layer.start + layer.depth]);
      else {
        const item = items[node.at];
        const left = cross(node) - node.size / 2;
        const top = layer.start + (layer.depth - node.depth) / 2;
        if (step === 0) points.push([left + outAt[item], top + node.depth]);
        else points.push([left + inAt[item], top]);
      }
    });
    return { from: a < entry ? items[a] : -1, to: b < entry ? items[b] : -1, wires, d: curve(points), spots: spots(points) };
  });
}

function curve(points) {
  const r = (value) => Math.round(value * 10) / 10;
  const p = (cross, main) => (isSideways ? r(main) + " " + r(cross) : r(cross) + " " + r(main));
  let [x, y] = points[0];
  let d = "M" + p(x, y);
  for (let at = 1; at < points.length; at++) {
    const [nx, ny, isCorner] = points[at];
    if (isCorner) {
      const toward = ([ox, oy]) => {
        const length = Math.abs(ox - nx) + Math.abs(oy - ny);
        const by = length ? Math.min(6, length / 2) / length : 0;
        return [nx + (ox - nx) * by, ny + (oy - ny) * by];
      };
      const [from, to] = [toward([x, y]), toward(points[at + 1])];
      d += "L" + p(...from) + "Q" + p(nx, ny) + " " + p(...to);
      [x, y] = to;
      continue;
    }
    if (Math.abs(nx - x) < 0.6) d += "L" + p(nx, ny);
    else {
      const bow = Math.max(8, (ny - y) / 2);
      d += "C" + p(x, y + bow) + " " + p(nx, ny - bow) + " " + p(nx, ny);
    }
    [x, y] = [nx, ny];
  }
  return d;
}

// Where a line's label may stand: beside the middle of its last part, of its first.
function spots(points) {
  return [points.length - 1, 1].map((at) => {
    const [x, y] = points[at - 1];
    const [nx, ny] = points[at];
    const [cross, main] = [(x + nx) / 2, (y + ny) / 2];
    return isSideways ? [main, cross] : [cross, main];
  });
}
