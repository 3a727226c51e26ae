// The model as nested boxes: columns of the data, what is open, and each box's share of the tensors.
const data = await read("data");
const G = data.graph;
const N = G.parent.length;
const text = (position) => G.strings[position];
const kids = Array.from({ length: N }, () => []);
const level = new Int32Array(N);
const paths = new Array(N).fill("");
for (let box = 1; box < N; box++) {
  const parent = G.parent[box];
  kids[parent].push(box);
  level[box] = level[parent] + 1;
  paths[box] = G.path[box] ? text(G.path[box]) : (paths[parent] && paths[parent] + ".") + text(G.title[box]);
}
const byPath = new Map();
for (let box = N - 1; box >= 0; box--) byPath.set(paths[box], box);
const isOpen = new Uint8Array(N);
isOpen[0] = 1;
// Runs of equal siblings: the first box of each member's run, and the length at the first.
const runOf = new Int32Array(N).fill(-1);
const runLength = new Map();
const unfolded = new Set();
for (const [first, length] of G.runs) {
  const siblings = kids[G.parent[first]];
  const start = siblings.indexOf(first);
  runLength.set(first, length);
  for (let at = 0; at < length; at++) runOf[siblings[start + at]] = first;
}
// The box that is drawn for a box: the first of its run while that is folded.
const drawn = (box) => (runOf[box] >= 0 && !unfolded.has(runOf[box]) ? runOf[box] : box);
const pile = (box) => (runOf[box] === box && !unfolded.has(box) ? runLength.get(box) : 1);
const stageOf = (box) => (G.stage ? G.stage[box] : -1);
// Boxes that open only where they are asked for: norms, masks, positions.
const isQuiet = new Uint8Array(N);
for (const box of G.closed || []) isQuiet[box] = 1;
// What a closed box mainly does: of its operators' families the one that says most.
const NORM = G.families.indexOf("normalisation");
const TELLING = ["attention, recurrence", "convolution", "matrix product", "embedding", "normalisation", "pooling, reduction", "activation, arithmetic", "reshape, copy"].map((name) => G.families.indexOf(name));
const does = Int8Array.from(G.family);
// The stages that a plan has cut a box into, where they are several.
const cuts = new Map();
{
  const rank = new Array(G.families.length).fill(99);
  TELLING.forEach((family, at) => family >= 0 && (rank[family] = at));
  const stages = new Map();
  for (let box = N - 1; box > 0; box--) {
    const parent = G.parent[box];
    if (isQuiet[box] && text(G.subtitle[box]).includes("Norm")) does[box] = NORM;
    if (rank[does[box]] < rank[does[parent]]) does[parent] = does[box];
    if (!G.stage) continue;
    if (stageOf(box) < 0 && stages.get(box)?.size > 1) cuts.set(box, [...stages.get(box)].sort((a, b) => a - b));
    if (!stages.has(parent)) stages.set(parent, new Set());
    for (const stage of stageOf(box) >= 0 ? [stageOf(box)] : stages.get(box) || []) stages.get(parent).add(stage);
  }
}
const cutWords = (box) => {
  const list = (cuts.get(box) || []).map((stage) => "S" + stage);
  return list.length ? "cut: " + (list.length > 4 ? list[0] + " | " + list[1] + " … " + list[list.length - 1] : list.join(" | ")) : "";
};

// Inside each box: [from, to, wire] for each tensor's way, -1 for the border.
const ways = Array.from({ length: N }, () => []);
function lift() {
  const seen = new Map();
  const put = (inside, from, to, wire) => {
    const key = (from < 0 ? N : from) * (N + 1) + (to < 0 ? N : to);
    const known = seen.get(key);
    if (known) {
      if (known[known.length - 1] !== wire) known.push(wire);
      return;
    }
    const way = [from, to, wire];
    seen.set(key, way);
    ways[inside].push(way);
  };
  G.wires.forEach((wire, number) => {
    for (let at = 2; at < wire.length; at++) {
      let from = wire[0];
      let to = wire[at];
      while (level[from] > level[to]) {
        put(G.parent[from], from, -1, number);
        from = G.parent[from];
      }
      while (level[to] > level[from]) {
        put(G.parent[to], -1, to, number);
        to = G.parent[to];
      }
      while (G.parent[from] !== G.parent[to]) {
        put(G.parent[from], from, -1, number);
        put(G.parent[to], -1, to, number);
        from = G.parent[from];
        to = G.parent[to];
      }
      if (from !== to) put(G.parent[from], from, to, number);
    }
  });
}
lift();

// Shapes of the tensors that a list of wires carries, in few words.
function shapes(wires) {
  const labels = [...new Set(wires.map((wire) => text(G.wires[wire][1])).filter((label) => label))];
  return labels.length > 2 ? wires.length + " tensors" : labels.join(", ");
}

// Opens what is around a box, so that it is drawn.
function reveal(box) {
  for (let at = box; at > 0; at = G.parent[at]) {
    if (runOf[at] >= 0 && runOf[at] !== at) unfolded.add(runOf[at]);
    isOpen[G.parent[at]] = 1;
  }
}

// Boxes that would be drawn, in order, as deep as they are open.
function visible(from = 0) {
  const list = [];
  const stack = [from];
  while (stack.length) {
    const box = stack.pop();
    if (box !== from) list.push(box);
    if (!isOpen[box]) continue;
    for (let at = kids[box].length - 1; at >= 0; at--) {
      if (drawn(kids[box][at]) === kids[box][at]) stack.push(kids[box][at]);
    }
  }
  return list;
}

// Opens level by level while few enough boxes are drawn.
function openSome(most) {
  isOpen.fill(0);
  isOpen[0] = 1;
  for (;;) {
    const next = visible().filter((box) => kids[box].length && !isOpen[box] && !isQuiet[box]);
    let more = 0;
    for (const box of next) more += kids[box].filter((kid) => drawn(kid) === kid).length;
    if (!next.length || visible().length + more > most) return;
    for (const box of next) isOpen[box] = 1;
  }
}
