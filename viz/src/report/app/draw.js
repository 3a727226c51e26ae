// Drawing: only what is on the screen, and only as much of it as can be read.
const canvas = $("canvas");
const view = { x: 0, y: 0, k: 1 };
// Smaller than this, words are not drawn and boxes are spots of colour.
const FAR = 0.42;
const TINY = 7;
let selected = -1;
let marked = new Set();
let litStage = -1;
let colour = G.stage ? "stage" : "kind";

// What boxes can be coloured by. Amounts are shares of the largest box of its kind of nesting: of the operators.
const COLOURS = {
  kind: { label: "what it does" },
  stage: { label: "stage", isThere: !!G.stage },
  time: { label: "predicted time", values: G.time, show: nanoseconds, letter: "c", isThere: !!G.time },
  cost: { label: "forward FLOPs", values: G.flops, show: flops, letter: "c" },
  memory: { label: "memory for the backward pass", values: G.memory, show: bytes, letter: "y" },
  parameters: { label: "parameters", values: G.parameters, show: count, letter: "y" },
};
const most = (values) => {
  let most = 0;
  for (let box = 1; box < N; box++) if (!kids[box].length) most = Math.max(most, values[box]);
  return most;
};
for (const kind of Object.values(COLOURS)) if (kind.values) kind.most = most(kind.values);

// A square root spreads the small ones; zero has no colour.
function step(box) {
  const { values, most } = COLOURS[colour];
  const share = Math.sqrt(Math.min(1, values[box] / (most || 1)));
  return values[box] > 0 ? Math.min(5, Math.floor(share * 6)) : -1;
}

function boxClass(box, scale = view.k) {
  const amount = COLOURS[colour];
  let name = "box";
  // A frame of a few pixels is a spot of its colour.
  const isFrame = isOpen[box] && kids[box].length && Math.min(W[box], H[box]) * scale >= TINY;
  if (isFrame) name += " frame d" + ((level[box] - 1) % 3);
  else if (G.family[box] >= 9) name += " end";
  else if (colour === "kind") name += " f" + Math.max(0, does[box]);
  else if (amount.values) {
    const at = step(box);
    if (at >= 0) name += " " + amount.letter + at;
  }
  if (colour === "stage") {
    const stage = stageOf(box);
    if (stage >= 0) name += " staged s" + (stage % 7);
    if (litStage >= 0 && stage !== litStage) name += " dim";
  }
  if (box === selected) name += " on";
  if (marked.has(box)) name += " hit";
  return name;
}

// Where a box is, from the page's corner.
function placeOf(box) {
  let x = 0;
  let y = 0;
  for (let at = box; at > 0; at = G.parent[at]) {
    x += X[at];
    y += Y[at];
  }
  return [x, y];
}

let drawnView = null;
const scene = svg("g", {});
canvas.append(scene);

// Draws again: everything in and near the window.
function draw([width, height] = [canvas.clientWidth || 800, canvas.clientHeight || 600]) {
  const edge = 0.4;
  const window = {
    left: (-view.x - edge * width) / view.k,
    top: (-view.y - edge * height) / view.k,
    right: (-view.x + (1 + edge) * width) / view.k,
    bottom: (-view.y + (1 + edge) * height) / view.k,
  };
  const under = [];
  const wires = [];
  const over = [];
  const labels = [];
  // Where something stands already: [left, top, right, bottom].
  const taken = [];
  const isSeen = (x, y, w, h) => x < window.right && x + w > window.left && y < window.bottom && y + h > window.top;
  const stack = [[0, 0, 0]];
  while (stack.length) {
    const [box, x, y] = stack.pop();
    for (const kid of kids[box]) {
      if (drawn(kid) !== kid) continue;
      const [kx, ky] = [x + X[kid], y + Y[kid]];
      if (!isSeen(kx, ky, W[kid] + 8, H[kid] + 8)) continue;
      const isFrame = isOpen[kid] && kids[kid].length;
      const isTiny = Math.min(W[kid], H[kid]) * view.k < TINY;
      if (isFrame && !isTiny) {
        under.push(rectangle(kid, kx, ky));
        if (view.k > FAR) {
          head(kid, kx, ky, over);
          taken.push([kx, ky, kx + 26 + widthOf(shown(kid), BOLD) + widthOf(small(kid), PLAIN), ky + HEAD - 4]);
        }
        stack.push([kid, kx, ky]);
      } else {
        if (pile(kid) > 1 && !isTiny) {
          for (const by of [6, 3]) over.push(rectangle(kid, kx + by, ky + by, true));
        }
        over.push(rectangle(kid, kx, ky));
        taken.push([kx - 1, ky - 1, kx + W[kid] + 1, ky + H[kid] + 1]);
        if (view.k > FAR) words(kid, kx, ky, over);
      }
    }
    if (view.k > 0.06) lanes(box, x, y, window, wires, labels);
  }
  place(labels, taken, over);
  scene.setAttribute("class", view.k > FAR ? "" : "far");
  scene.replaceChildren(svg("g", {}, ...under), svg("g", { class: "wires" }, ...wires), svg("g", {}, ...over));
  drawnView = { ...view, window };
  isMapStale = true;
  move();
}

function rectangle(box, x, y, isBehind) {
  const rounding = G.family[box] >= 9 ? H[box] / 2 : 6;
  const attributes = { x, y, width: W[box], height: H[box], rx: rounding, class: boxClass(box) + (isBehind ? " behind" : "") };
  if (!isBehind) {
    Object.assign(attributes, {
      id: "b" + box,
      "data-box": box,
      role: "treeitem",
      "aria-level": level[box],
      "aria-label": label(box),
      "aria-selected": box === selected ? "true" : "false",
      "aria-expanded": kids[box].length ? (isOpen[box] ? "true" : "false") : undefined,
    });
  }
  return svg("rect", attributes);
}

function label(box) {
  const amount = COLOURS[colour];
  const parts = [shown(box), text(G.subtitle[box])];
  if (pile(box) > 1) parts.push(pile(box) + " equal blocks");
  if (stageOf(box) >= 0) parts.push("stage " + stageOf(box));
  if (cuts.has(box)) parts.push("cut between stages " + cuts.get(box).join(" and "));
  if (amount.values) parts.push(amount.show(amount.values[box]) + " " + amount.label);
  return parts.filter((part) => part).join(", ");
}

const line = (x, y, name, words) => svg("text", { x, y, class: name }, words);

function head(box, x, y, over) {
  const title = shown(box);
  const halo = " on-d" + ((level[box] - 1) % 3);
  over.push(line(x + 12, y + 16, "title" + halo, title));
  if (small(box)) over.push(line(x + 19 + widthOf(title, BOLD), y + 16, "small" + halo, small(box)));
  sign(box, x, y, over);
}

function sign(box, x, y, over) {
  const times = runOf[box] === box && runLength.get(box) > 1;
  if (times && pile(box) > 1) {
    over.push(
      svg("rect", { class: "times", x: x + W[box] - 38, y: y + 5, width: 32, height: 16, rx: 8, "data-unfold": box }),
      svg("text", { class: "times", x: x + W[box] - 22, y: y + 17, "data-unfold": box }, badge(box)),
    );
  }
}

function words(box, x, y, over) {
  const isTerminal = G.family[box] >= 9;
  const stage = colour === "stage" ? stageOf(box) : -1;
  const marks = stage >= 0 ? [stage] : (colour === "stage" && cuts.get(box)?.slice(0, 8)) || [];
  const left = x + 12 + (marks.length ? 4 : 0);
  const height = (H[box] - 12) / marks.length;
  marks.forEach((stage, at) => over.push(svg("rect", { class: "mark s" + (stage % 7), x: x + 1, y: y + 6 + at * height, width: 5, height, rx: marks.length > 1 ? 0 : 2 })));
  if (isTerminal) over.push(line(x + W[box] / 2, y + 17, "title end", shown(box)));
  else over.push(line(left, y + 18, "title", shown(box)));
  if (!isTerminal && small(box)) over.push(line(left, y + 33, COLOURS[colour].values ? "plain" : "small", small(box)));
  if (tags[box]) over.push(line(left, y + H[box] - 6, "tag", tagged(box)));
  if (cutOf(box)) over.push(line(left, y + H[box] - 6 - (tags[box] ? 13 : 0), "cut", cutOf(box)));
  sign(box, x, y, over);
  const amount = COLOURS[colour];
  if (amount.values && amount.values[box] > 0 && !isTerminal) {
    const share = amount.values[box] / (amount.values[0] || 1);
    over.push(svg("rect", { class: "share", x: x + 2, y: y + H[box] - 4, width: Math.max(1, (W[box] - 4) * share), height: 3, rx: 1 }));
  }
}

function lanes(box, x, y, window, wires, labels) {
  if (!lines[box] || !isOpen[box]) return;
  for (const lane of lines[box]) {
    const bend = lane.spots[0];
    const isOn = selected >= 0 && (lane.from === selected || lane.to === selected);
    wires.push(svg("path", { d: lane.d, transform: x || y ? "translate(" + x + " " + y + ")" : undefined, class: isOn ? "on" : undefined }));
    const isNear = x + bend[0] < window.right && x + bend[0] > window.left && y + bend[1] < window.bottom && y + bend[1] > window.top;
    if ((view.k > 0.75 && lane.to >= 0 && isNear && lines[box].length < 400) || isOn) {
      const words = shapes(lane.wires);
      if (words) labels.push({ words, isOn, halo: " on-d" + (box ? (level[box] - 1) % 3 : "page"), spots: lane.spots.map(([left, top]) => [x + left, y + top]) });
    }
  }
}

// Writes labels where nothing stands yet, on either side of their lines; one that finds no place is in the details.
function place(labels, taken, over) {
  labels.sort((a, b) => b.isOn - a.isOn);
  for (const { words, isOn, halo, spots } of labels) {
    const width = widthOf(words, LABEL);
    const boxes = spots.flatMap(([x, y]) => [[x + 4, y - 6, x + 6 + width, y + 5], [x - 6 - width, y - 6, x - 4, y + 5]]);
    const isFree = ([left, top, right, bottom]) => taken.every((other) => left >= other[2] || right <= other[0] || top >= other[3] || bottom <= other[1]);
    const box = boxes.find(isFree);
    if (!box) continue;
    taken.push(box);
    over.push(line(box[0], box[3] - 2, (isOn ? "shape on" : "shape") + halo, words));
  }
}

// Moves what is drawn; draws again when the window leaves it or the size changes much.
function move() {
  scene.setAttribute("transform", "translate(" + view.x + " " + view.y + ") scale(" + view.k + ")");
  followWindow();
}
let isAsked = false;
function redraw(isNeeded) {
  const old = drawnView;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  const isInside =
    old &&
    view.k === old.k &&
    -view.x / view.k > old.window.left &&
    -view.y / view.k > old.window.top &&
    (-view.x + width) / view.k < old.window.right &&
    (-view.y + height) / view.k < old.window.bottom;
  if (!isNeeded && isInside) return move();
  move();
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    draw();
  });
}
