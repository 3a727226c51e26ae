// The graph's hands: opening and closing, walking, finding, details, and addresses that name a box.

// Lays out and draws, with a box kept where it is on the screen.
function update(still) {
  const before = still > 0 ? placeOf(still) : null;
  layout();
  if (before) {
    const after = placeOf(still);
    view.x += (before[0] - after[0]) * view.k;
    view.y += (before[1] - after[1]) * view.k;
  }
  redraw(true);
}

function toggle(box, open = !isOpen[box]) {
  if (!kids[box].length) return;
  isOpen[box] = open ? 1 : 0;
  stale(box);
  update(box);
}

function unfold(box, isFolded = unfolded.has(box)) {
  if (isFolded) unfolded.delete(box);
  else unfolded.add(box);
  stale(box);
  if (isFolded && selected >= 0) selected = drawn(selected);
  update(box);
}

function openAll() {
  for (let box = 0; box < N; box++) {
    if (kids[box].length && !isOpen[box]) {
      isOpen[box] = 1;
      isStale[box] = 1;
      stale(box);
    }
  }
  layout();
  fit();
}

// Opens or closes the outermost level that is not, or the innermost that is.
function more(isMore) {
  let boxes = visible().filter((box) => kids[box].length && (isMore ? !isOpen[box] : isOpen[box]));
  // Norms and masks open last.
  if (isMore && boxes.some((box) => !isQuiet[box])) boxes = boxes.filter((box) => !isQuiet[box]);
  if (!boxes.length) return;
  const depth = boxes.map((box) => level[box]).reduce((a, b) => (isMore ? Math.min(a, b) : Math.max(a, b)));
  for (const box of boxes) {
    if (level[box] !== depth) continue;
    isOpen[box] = isMore ? 1 : 0;
    stale(box);
  }
  layout();
  fit(true);
}

// Shows everything, or with `isReadable` as much from the beginning as can be read.
function fit(isReadable) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  const whole = Math.min(width / (W[0] + 16), height / (H[0] + 16), 1.2);
  const readable = Math.min(1, Math.max(whole, 0.72));
  view.k = isReadable ? readable : whole;
  view.x = W[0] * view.k <= width ? (width - W[0] * view.k) / 2 : isSideways ? 8 : (width - W[0] * view.k) / 2;
  view.y = H[0] * view.k <= height ? (height - H[0] * view.k) / 2 : isSideways ? (height - H[0] * view.k) / 2 : 6;
  // Where not all of it fits, the first box that computes something is shown.
  if (isReadable && !isSideways && W[0] * view.k > width) {
    let first = 0;
    while (isOpen[first] && kids[first].length) first = kids[first].find((kid) => G.family[kid] < 9) ?? kids[first][0];
    const middle = (placeOf(first)[0] + W[first] / 2) * view.k;
    view.x = Math.min(8, width / 2 - middle);
  }
  redraw(true);
}

function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const k = Math.max(0.004, Math.min(4, view.k * factor));
  view.x = x - ((x - view.x) * k) / view.k;
  view.y = y - ((y - view.y) * k) / view.k;
  view.k = k;
  redraw(true);
}

// Brings a box into the window.
function bring(box, isCentred) {
  const [x, y] = placeOf(box);
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (isCentred && view.k < 0.5) view.k = 0.9;
  const left = x * view.k + view.x;
  const top = y * view.k + view.y;
  const w = Math.min(W[box] * view.k, width - 40);
  const h = Math.min(H[box] * view.k, height - 40);
  const isOut = left < 0 || top < 0 || left + w > width || top + h > height;
  if (!isOut && !isCentred) return redraw(true);
  view.x += (width - w) / 2 - left;
  view.y += (height - h) / 2 - top;
  redraw(true);
}

function select(box, isCentred, isSilent) {
  selected = box;
  if (box >= 0) {
    canvas.setAttribute("aria-activedescendant", "b" + box);
    bring(box, isCentred);
  } else {
    canvas.removeAttribute("aria-activedescendant");
    redraw(true);
  }
  details(box);
  if (!isSilent) address();
}

// Goes to a box wherever it is.
function go(box, isSilent) {
  reveal(box);
  for (let at = box; ; at = G.parent[at]) {
    isStale[at] = 1;
    if (!at) break;
  }
  layout();
  select(box, true, isSilent);
}

function details(box) {
  const panel = $("details");
  panel.replaceChildren();
  const isWhole = box < 0;
  if (isWhole) box = 0;
  const rows = html("dl", {});
  const row = (name, ...value) => rows.append(html("dt", {}, name), html("dd", {}, ...value));
  panel.append(html("h3", {}, isWhole ? text(G.title[0]) : shown(box)));
  if (paths[box]) panel.append(html("p", { class: "path" }, paths[box]));
  if (text(G.subtitle[box])) row("is", text(G.subtitle[box]));
  if (pile(box) > 1) row("stands for", pile(box) + " equal blocks");
  if (kids[box].length) row("holds", kids[box].length + (kids[box].length === 1 ? " part" : " parts"));
  else if (G.families[G.family[box]] !== "module") row("kind", G.families[G.family[box]]);
  const list = G.attributes[box];
  for (let at = 0; at < list.length; at += 2) row(text(list[at]), text(list[at + 1]));
  const share = (values) => (values[0] > 0 && box ? " · " + percent(values[box] / values[0]) : "");
  if (G.time) row("time", nanoseconds(G.time[box]) + share(G.time));
  if (G.flops[box]) row("forward", flops(G.flops[box]) + share(G.flops));
  if (G.parameters[box]) row("parameters", count(G.parameters[box]) + share(G.parameters));
  if (G.memory[box]) row("saved activations", bytes(G.memory[box]) + share(G.memory));
  if (cuts.has(box)) row("cut", "between stages " + cuts.get(box).join(", "));
  if (stageOf(box) >= 0) {
    const stage = stageOf(box);
    row("stage", html("i", { class: "dot s" + (stage % 7) }), stage + " on " + (data.stages[stage]?.devices.slice(0, 3).join(", ") || "?"));
  }
  panel.append(rows);
  if (isWhole) {
    panel.append(html("p", { class: "note" }, "Choose a box to see what it is, what it costs and what flows through it."));
    return;
  }
  const buttons = html("p", { class: "tools" });
  if (kids[box].length) {
    buttons.append(button(isOpen[box] ? "Close" : "Open", () => act(() => toggle(box))));
  }
  if (runOf[box] >= 0) {
    const first = runOf[box];
    buttons.append(button(unfolded.has(first) ? "Fold equal blocks" : "Show all " + runLength.get(first), () => act(() => unfold(first))));
  }
  const act = (what) => {
    what();
    details(selected);
  };
  if (buttons.childNodes.length) panel.append(buttons);
  for (const [title, side] of [["from", 0], ["to", 1]]) {
    const near = ways[G.parent[box]].filter((way) => drawn(way[1 - side]) === box && way[side] !== box);
    if (!near.length) continue;
    const items = html("ul", {});
    for (const way of near.slice(0, 12)) {
      const other = way[side];
      const words = shapes(way.slice(2));
      items.append(html("li", {}, other < 0 ? "outside" : link(other), words ? html("span", {}, " " + words) : ""));
    }
    if (near.length > 12) items.append(html("li", {}, "and " + (near.length - 12) + " more"));
    panel.append(html("h4", {}, title), items);
  }
}

function button(words, action) {
  const element = html("button", { type: "button" }, words);
  element.addEventListener("click", action);
  return element;
}

function link(box) {
  return html("a", { href: "#/" + encodeURIComponent(paths[box]) }, text(G.title[box]));
}

// Finding: a part of a name, or a pattern between slashes.
let hits = [];
let hitAt = -1;
function find(words) {
  hits = [];
  hitAt = -1;
  let isHit = null;
  const pattern = /^\/(.+?)\/?$/.exec(words);
  if (pattern) {
    try {
      const expression = new RegExp(pattern[1], "i");
      isHit = (box) => expression.test(paths[box]);
    } catch {
      $("found").textContent = "not a pattern";
      return;
    }
  } else if (words) {
    const low = words.toLowerCase();
    isHit = (box) => paths[box].toLowerCase().includes(low) || text(G.subtitle[box]).toLowerCase().includes(low);
  }
  for (let box = 1; isHit && box < N; box++) if (isHit(box)) hits.push(box);
  // Where a box and what is in it are found, the box is enough; the shortest names come first.
  hits.sort((a, b) => paths[a].length - paths[b].length || a - b);
  marked = new Set(hits.slice(0, 2000));
  $("found").textContent = words ? (hits.length ? "1 of " + hits.length : "nothing found") : "";
  if (hits.length) nextHit(0);
  else redraw(true);
}

function nextHit(by) {
  if (!hits.length) return;
  hitAt = (Math.max(0, hitAt) + by + hits.length) % hits.length;
  $("found").textContent = hitAt + 1 + " of " + hits.length;
  go(hits[hitAt]);
}

// Addresses: #/layers.3.attn?color=memory
let written = "";
function address() {
  const path = selected > 0 ? encodeURIComponent(paths[selected]) : "";
  written = "#/" + path + (colour === (G.stage ? "stage" : "kind") ? "" : "?color=" + colour);
  try {
    history.replaceState(null, "", written === "#/" ? "#" : written);
  } catch {
    // A page without an address of its own works all the same.
  }
}

function follow() {
  const [, path, query] = /^#\/([^?]*)\??(.*)$/.exec(location.hash) || [];
  if (path === undefined || location.hash === written) return false;
  const wanted = new URLSearchParams(query).get("color");
  if (wanted && Object.hasOwn(COLOURS, wanted) && COLOURS[wanted].isThere !== false) setColour(wanted, true);
  let name = path;
  try {
    name = decodeURIComponent(path);
  } catch {
    // A broken address names nothing.
  }
  const box = byPath.get(name);
  if (box > 0) {
    isOpen[box] = 1;
    go(box, true);
  }
  return box > 0;
}

function setColour(name, isSilent) {
  colour = name;
  $("color").value = name;
  legend();
  redraw(true);
  if (!isSilent) address();
}

function legend() {
  const items = [];
  const amount = COLOURS[colour];
  const dot = (name, words) => items.push(html("span", {}, html("i", { class: "dot " + name }), words));
  if (colour === "kind") {
    const used = new Set();
    for (let box = 1; box < N; box++) if (!kids[box].length && G.family[box] < 9) used.add(G.family[box]);
    for (const family of [...used].sort((a, b) => a - b)) dot("fam f" + family, G.families[family]);
  } else if (colour === "stage") {
    data.stages.slice(0, 16).forEach((stage, number) => dot("s" + (number % 7), "stage " + number));
  } else {
    for (let at = 0; at < 6; at++) {
      dot("fam " + amount.letter + at, at === 0 ? "0" : at === 5 ? "up to " + amount.show(amount.most) : "");
    }
    items.push(html("span", {}, "bar: share of the model"));
  }
  $("legend").replaceChildren(...items);
}

// Keys on the graph.
function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const list = visible();
  const box = selected > 0 ? drawn(selected) : -1;
  const at = list.indexOf(box);
  const pick = (other) => other !== undefined && other > 0 && select(other);
  const actions = {
    ArrowDown: () => pick(list[at + 1] ?? list[at]),
    ArrowUp: () => pick(list[Math.max(0, at - 1)]),
    ArrowRight: () => {
      if (box < 0) pick(list[0]);
      else if (kids[box].length && !isOpen[box]) toggle(box), details(box);
      else if (kids[box].length) pick(kids[box].find((kid) => drawn(kid) === kid));
    },
    ArrowLeft: () => {
      if (box < 0) pick(list[0]);
      else if (isOpen[box] && kids[box].length) toggle(box), details(box);
      else pick(G.parent[box]);
    },
    Enter: () => box > 0 && (kids[box].length ? toggle(box) : undefined, details(box)),
    " ": () => box > 0 && (kids[box].length ? toggle(box) : undefined, details(box)),
    x: () => box > 0 && runOf[box] >= 0 && (unfold(runOf[box]), select(drawn(box))),
    Home: () => pick(list[0]),
    End: () => pick(list[list.length - 1]),
    Escape: () => select(-1),
    "+": () => zoom(1.3),
    "=": () => zoom(1.3),
    "-": () => zoom(1 / 1.3),
    0: () => fit(),
  };
  if (!actions[event.key]) return;
  event.preventDefault();
  actions[event.key]();
}

function listen() {
  for (const name in COLOURS) {
    if (COLOURS[name].isThere !== false) $("color").append(html("option", { value: name }, COLOURS[name].label));
  }
  $("color").addEventListener("change", (event) => setColour(event.target.value));
  $("more").addEventListener("click", () => more(true));
  $("less").addEventListener("click", () => more(false));
  $("all").addEventListener("click", openAll);
  $("in").addEventListener("click", () => zoom(1.3));
  $("out").addEventListener("click", () => zoom(1 / 1.3));
  $("fit").addEventListener("click", () => fit());
  $("turn").addEventListener("click", () => {
    isSideways = !isSideways;
    isStale.fill(1);
    layout();
    fit(true);
  });
  $("find").addEventListener("input", (event) => find(event.target.value.trim()));
  $("find").addEventListener("keydown", (event) => {
    if (event.key === "Enter") nextHit(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") {
      event.target.value = "";
      find("");
      canvas.focus();
    }
  });
  canvas.addEventListener("keydown", key);
  let grip = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    grip = { x: event.clientX, y: event.clientY, view: { ...view }, hasMoved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!grip) return;
    const [dx, dy] = [event.clientX - grip.x, event.clientY - grip.y];
    if (!grip.hasMoved && Math.abs(dx) + Math.abs(dy) < 4) return;
    if (!grip.hasMoved) canvas.setPointerCapture(event.pointerId);
    grip.hasMoved = true;
    view.x = grip.view.x + dx;
    view.y = grip.view.y + dy;
    redraw();
  });
  canvas.addEventListener("pointerup", (event) => {
    const isClick = grip && !grip.hasMoved;
    grip = null;
    if (!isClick) return;
    const run = event.target.getAttribute("data-unfold");
    if (run !== null) return unfold(Number(run)), select(Number(run));
    const box = Number(event.target.getAttribute("data-box") ?? -1);
    if (box < 0) return select(-1);
    if (kids[box].length) toggle(box);
    select(box);
  });
  canvas.addEventListener("pointercancel", () => (grip = null));
  listenMap();
  $("board").addEventListener(
    "wheel",
    (event) => {
      // The wheel alone scrolls the page, as everywhere.
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const corner = canvas.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 300), event.clientX - corner.left, event.clientY - corner.top);
    },
    { passive: false },
  );
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
    event.preventDefault();
    $("find").focus();
  });
  addEventListener("hashchange", follow);
  new ResizeObserver(() => requestAnimationFrame(() => redraw(true))).observe(canvas);
}
