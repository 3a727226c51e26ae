// The map: the whole graph, small, in a corner of the window, with a frame around what the window shows.
//
// It is for pointers; keys and screen readers have the tree itself. Where the window shows everything, there is no map.
const map = $("map");
const miniature = svg("g", { class: "far" });
const frame = svg("rect", { class: "window", rx: 2 });
map.append(miniature, frame);
const EDGE = 4;
// What is smaller than this on the map, in pixels, is part of the box around it.
const SPECK = 0.7;
const MOST_SPOTS = 3000;
let mapScale = 0;
let isMapStale = true;

// Brings the map up to date with the window; boxes are drawn again only when they changed.
function followWindow() {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const isInside = view.x > -8 && view.y > -8 && view.x + W[0] * view.k < width + 8 && view.y + H[0] * view.k < height + 8;
  map.toggleAttribute("hidden", isInside || !width);
  if (isInside || !width) return;
  if (isMapStale) drawMap(Math.min(190, width * 0.3), Math.min(260, height * 0.45));
  const clip = (at, most) => EDGE + Math.max(0, Math.min(most, at)) * mapScale;
  const [x, y] = [clip(-view.x / view.k, W[0]), clip(-view.y / view.k, H[0])];
  const [right, bottom] = [clip((width - view.x) / view.k, W[0]), clip((height - view.y) / view.k, H[0])];
  fill(frame, { x: x - 1, y: y - 1, width: Math.max(5, right - x + 2), height: Math.max(5, bottom - y + 2) }, []);
}

function drawMap(width, height) {
  isMapStale = false;
  mapScale = Math.min(width / W[0], height / H[0]);
  fill(map, { width: Math.ceil(W[0] * mapScale) + 2 * EDGE, height: Math.ceil(H[0] * mapScale) + 2 * EDGE }, []);
  const rects = [];
  // Outermost boxes first, so that what exceeds the limit is the finest.
  const queue = [[0, 0, 0]];
  for (let at = 0; at < queue.length && rects.length < MOST_SPOTS; at++) {
    const [box, x, y] = queue[at];
    for (const kid of kids[box]) {
      if (drawn(kid) !== kid || Math.max(W[kid], H[kid]) * mapScale < SPECK) continue;
      const [left, top] = [x + X[kid], y + Y[kid]];
      rects.push(svg("rect", { x: left, y: top, width: W[kid], height: H[kid], class: boxClass(kid, mapScale) }));
      if (isOpen[kid]) queue.push([kid, left, top]);
    }
  }
  miniature.setAttribute("transform", "translate(" + EDGE + " " + EDGE + ") scale(" + mapScale + ")");
  miniature.replaceChildren(...rects);
}

// The frame is dragged; a press beside it brings the window there first.
function listenMap() {
  let grip = null;
  const at = (event) => {
    const corner = map.getBoundingClientRect();
    return [(event.clientX - corner.left - EDGE) / mapScale, (event.clientY - corner.top - EDGE) / mapScale];
  };
  const goTo = ([x, y]) => {
    view.x = canvas.clientWidth / 2 - (x - grip[0]) * view.k;
    view.y = canvas.clientHeight / 2 - (y - grip[1]) * view.k;
    redraw();
  };
  map.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    event.preventDefault();
    map.setPointerCapture(event.pointerId);
    const [x, y] = at(event);
    const [dx, dy] = [x - (canvas.clientWidth / 2 - view.x) / view.k, y - (canvas.clientHeight / 2 - view.y) / view.k];
    const isBeside = event.target !== frame;
    grip = isBeside ? [0, 0] : [dx, dy];
    if (isBeside) goTo([x, y]);
  });
  map.addEventListener("pointermove", (event) => grip && goTo(at(event)));
  for (const name of ["pointerup", "pointercancel"]) map.addEventListener(name, () => (grip = null));
}
