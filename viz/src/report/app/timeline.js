// The step over time: a row for each stream of each device, memory below it on the same axis.
const KINDS = {
  F: ["forward", "F"],
  B: ["backward", "B"],
  I: ["input gradient", "I"],
  W: ["weight gradient", "W"],
  T: ["transfer", ""],
  C: ["collective", ""],
  M: ["copy", ""],
  O: ["optimizer", "opt"],
};
const LEFT = 96;
const time = { from: 0, to: 1, end: 1 };
const charts = [];

// Turns columns into spans and points, once.
function unpack(timeline) {
  if (timeline.isUnpacked) return;
  timeline.isUnpacked = true;
  for (const track of timeline.tracks) {
    const names = new Map(track.names);
    let at = 0;
    track.spans = track.lengths.map((length, number) => {
      const start = at + track.gaps[number];
      at = start + length;
      const kind = track.kinds[number];
      const [stage, micro] = [track.stages[number], track.micro_batches[number]];
      return { start, end: at, kind, stage, micro, name: names.get(number) ?? stage + kind + micro };
    });
  }
  for (const curve of timeline.memory) {
    let at = 0;
    curve.steps = curve.points.map(([gap, used]) => [(at += gap), used]);
    curve.peak = curve.steps.reduce((most, [, used]) => Math.max(most, used), 0);
  }
}

function prepareTimelines() {
  for (const timeline of data.timelines || []) {
    const element = svg("svg", { class: "chart", role: "img", tabindex: 0 });
    const heading = html("h3", {});
    $("charts").append(heading, html("div", { class: "scroll" }, element));
    const chart = { element, heading };
    charts.push(chart);
    put(chart, timeline, "");
    listenChart(element);
  }
}

// Puts a timeline into a chart, with what it is in words.
function put(chart, timeline, words) {
  unpack(timeline);
  chart.timeline = timeline;
  const long = duration(timeline, timeline.end);
  const rest = timeline.left_out ? ", " + timeline.left_out + " further devices left out" : "";
  const title = timeline.title + (words ? ": " + words : "");
  chart.element.setAttribute("aria-label", title + ", " + long + " per step. Left and right move, + and - zoom, 0 shows the whole step.");
  chart.heading.replaceChildren(title[0].toUpperCase() + title.slice(1), html("span", {}, " " + long + rest));
  time.end = Math.max(...charts.map((one) => (one.timeline || timeline).end));
  Object.assign(time, { from: 0, to: time.end });
}

// Shows another step in place of the plan's, or without one the plan's again.
function showStep(timeline, words) {
  const own = (data.timelines || []).length - 1;
  if (own < 0) return;
  put(charts[own], timeline || data.timelines[own], timeline ? words : "");
  drawCharts();
}

const duration = (timeline, value) => (timeline.unit === "ns" ? nanoseconds(value) : value + " " + timeline.unit);

function drawCharts() {
  for (const chart of charts) drawChart(chart);
}

function drawChart({ timeline, element }) {
  const width = Math.max(480, element.parentElement.clientWidth);
  const right = width - 10;
  const x = (at) => LEFT + ((at - time.from) / (time.to - time.from)) * (right - LEFT);
  const parts = [];
  const back = [];
  let y = 20;
  const many = timeline.devices.length > 12;
  timeline.devices.forEach((device, number) => {
    const top = y;
    const tracks = timeline.tracks.filter((track) => track.device === number && track.spans.length);
    for (const track of tracks) {
      const height = track.stream === "compute" ? (many ? 14 : 20) : 6;
      for (const bar of bars(track, x, right)) parts.push(...span(timeline, track, bar, y, height, x));
      y += height + 2;
    }
    const curve = timeline.memory.find((curve) => curve.device === number);
    if (curve && curve.steps.length) {
      parts.push(...memory(timeline, curve, y + 2, many ? 16 : 30, x, right));
      y += (many ? 16 : 30) + 4;
    }
    const words = svg("text", { class: "device", x: 4, y: top + 13 }, device.length > 13 ? device.slice(0, 5) + "…" + device.slice(-7) : device);
    words.append(svg("title", {}, device));
    parts.push(words);
    y += 5;
    back.push(svg("path", { class: "grid", d: "M0 " + (y - 2.5) + "H" + right }));
  });
  for (const at of ticks(time.from, time.to)) {
    back.push(svg("path", { class: "grid", d: "M" + x(at) + " 18V" + y }), svg("text", { class: "tick", x: x(at), y: 12 }, at ? duration(timeline, at) : "0"));
  }
  if (timeline.end >= time.from && timeline.end <= time.to) {
    back.push(svg("path", { class: "end", d: "M" + x(timeline.end) + " 14V" + y }));
  }
  element.setAttribute("viewBox", "0 0 " + width + " " + y);
  element.setAttribute("width", width);
  element.setAttribute("height", y);
  element.replaceChildren(...back, ...parts);
}

// What can be seen of a track; spans too narrow to tell apart become one.
function bars(track, x, right) {
  const list = [];
  let last = null;
  for (const span of track.spans) {
    if (span.end <= time.from || span.start >= time.to || span.end === span.start) continue;
    const from = Math.max(LEFT, x(span.start));
    const to = Math.min(right, x(span.end));
    const isThin = to - from < 1.2;
    if (isThin && last && last.isThin && from - last.to < 1) {
      last.to = Math.max(last.to, to);
      last.many++;
      continue;
    }
    last = { span, from, to: Math.max(to, from + 0.4), isThin, many: 1 };
    list.push(last);
  }
  return list;
}

function span(timeline, track, { span, from, to, many }, y, height) {
  const stage = span.stage >= 0 ? " s" + (span.stage % 7) : "";
  const dim = litStage >= 0 && span.stage !== litStage ? " dim" : "";
  const rect = svg("rect", {
    class: "span k" + span.kind + stage + dim,
    x: from.toFixed(1),
    y,
    width: Math.max(0.5, to - from - (to - from > 3 ? 0.7 : 0)).toFixed(1),
    height,
    rx: to - from > 6 ? 2 : 0,
    "data-stage": span.stage >= 0 ? span.stage : undefined,
  });
  const name = many > 1 ? many + " operations" : span.name + ", " + KINDS[span.kind][0];
  const where = span.stage >= 0 ? "\nstage " + span.stage + (span.micro >= 0 ? ", micro-batch " + span.micro : "") : "";
  rect.tip = name + "\n" + track.stream + " of " + timeline.devices[track.device] + where + "\n" + duration(timeline, span.start) + " + " + duration(timeline, span.end - span.start);
  const parts = [rect];
  const words = span.kind === "O" ? "opt" : span.micro >= 0 ? span.kind + span.micro : "";
  if (height >= 14 && many === 1 && words && to - from > words.length * 6.4 + 3) {
    parts.push(svg("text", { class: "op k" + span.kind, x: (from + to) / 2, y: y + height / 2 + 3.5 }, words));
  }
  return parts;
}

function memory(timeline, curve, y, height, x, right) {
  // Where most of the memory stays free the curve would be a line on the floor: it takes the room, its limit is a number.
  const isNear = curve.limit && curve.peak * 4 > curve.limit;
  const top = (isNear ? Math.max(curve.peak, curve.limit) : curve.peak * 1.08) || 1;
  const up = (used) => y + height - (used / top) * height;
  let d = "";
  let last = null;
  for (const [at, used] of curve.steps) {
    if (at > time.to) break;
    const px = Math.max(LEFT, x(at));
    d = d && at > time.from ? d + "H" + px.toFixed(1) + "V" + up(used).toFixed(1) : "M" + LEFT + " " + (y + height) + "V" + up(used).toFixed(1);
    last = used;
  }
  const end = Math.min(right, x(timeline.end));
  if (last === null || end <= LEFT) return [];
  d += "H" + end.toFixed(1) + "V" + (y + height) + "Z";
  const isOver = curve.limit && curve.peak > curve.limit;
  const area = svg("path", { class: "memory" + (isOver ? " bad" : ""), d });
  area.tip = "memory of " + timeline.devices[curve.device] + "\npeak " + bytes(curve.peak) + (curve.limit ? " of " + bytes(curve.limit) : "");
  const parts = [area];
  if (isNear) parts.push(svg("path", { class: "limit", d: "M" + LEFT + " " + up(curve.limit).toFixed(1) + "H" + right }));
  parts.push(svg("text", { class: "peak", x: 4, y: y + height - 3 }, bytes(curve.peak)));
  return parts;
}

// Round times, five to ten of them.
function ticks(from, to) {
  const raw = (to - from) / 7;
  const ten = 10 ** Math.floor(Math.log10(raw || 1));
  const size = [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= raw) || 1;
  const list = [];
  for (let at = Math.ceil(from / size) * size; at <= to && list.length < 20; at += size) list.push(at);
  return list;
}

function zoomTime(factor, at = (time.from + time.to) / 2) {
  const least = Math.max(1, time.end / 1e6);
  const size = Math.min(time.end, Math.max(least, (time.to - time.from) * factor));
  const share = (at - time.from) / (time.to - time.from);
  time.from = Math.min(Math.max(0, at - share * size), time.end - size);
  time.to = time.from + size;
  drawCharts();
}

function moveTime(by) {
  const size = time.to - time.from;
  time.from = Math.min(Math.max(0, time.from + by), time.end - size);
  time.to = time.from + size;
  drawCharts();
}

function listenChart(element) {
  let grip = null;
  const at = (event) => {
    const box = element.getBoundingClientRect();
    return time.from + ((event.clientX - box.left - LEFT) / (box.width - LEFT - 10)) * (time.to - time.from);
  };
  element.addEventListener("pointermove", (event) => {
    if (grip) {
      if (Math.abs(event.clientX - grip.x) > 3) grip.hasMoved = true;
      const box = element.getBoundingClientRect();
      const size = time.to - time.from;
      time.from = grip.from;
      time.to = grip.from + size;
      moveTime(((grip.x - event.clientX) / (box.width - LEFT - 10)) * size);
      tip(event, "");
    } else tip(event, event.target.tip || "");
  });
  element.addEventListener("pointerleave", (event) => tip(event, ""));
  element.addEventListener("pointerdown", (event) => {
    if (!event.button) grip = { x: event.clientX, from: time.from, stage: event.target.getAttribute("data-stage") };
  });
  addEventListener("pointerup", () => {
    if (grip && !grip.hasMoved && grip.stage !== null) light(Number(grip.stage));
    grip = null;
  });
  element.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoomTime(Math.exp(event.deltaY / 300), at(event));
    },
    { passive: false },
  );
  element.addEventListener("keydown", (event) => {
    const size = time.to - time.from;
    const actions = { ArrowLeft: () => moveTime(-size / 8), ArrowRight: () => moveTime(size / 8), "+": () => zoomTime(0.7), "=": () => zoomTime(0.7), "-": () => zoomTime(1.4), 0: () => zoomTime(1e9) };
    if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  });
}

// Shows one stage everywhere, or all again.
function light(stage) {
  litStage = litStage === stage ? -1 : stage;
  if (litStage >= 0 && G.stage) setColour("stage", true);
  redraw(true);
  drawCharts();
  for (const row of document.querySelectorAll("tr[data-stage]")) {
    const isLit = Number(row.dataset.stage) === litStage;
    row.classList.toggle("on", isLit);
    row.querySelector("button").setAttribute("aria-pressed", isLit);
  }
}

function startTimelines() {
  if (!$("charts")) return;
  prepareTimelines();
  const used = new Set((data.timelines || []).flatMap((timeline) => timeline.tracks.flatMap((track) => [...new Set(track.kinds)])));
  for (const kind in KINDS) {
    if (used.has(kind)) $("kinds").append(html("span", {}, html("i", { class: "dot k" + kind + " s0" }), KINDS[kind][0]));
  }
  if (data.timelines.some((timeline) => timeline.memory.length)) $("kinds").append(html("span", {}, html("i", { class: "dot memory" }), "memory, dashed its limit where that is near"));
  for (const element of document.querySelectorAll("[data-zoom]")) {
    const factor = { in: 0.6, out: 1 / 0.6, fit: 1e9 }[element.dataset.zoom];
    element.addEventListener("click", () => zoomTime(factor));
  }
  for (const row of document.querySelectorAll("tr[data-stage]")) {
    row.addEventListener("click", () => light(Number(row.dataset.stage)));
    // A button inside, so that keys reach it; its click is the row's.
    const head = row.cells[0];
    const words = head.lastChild.textContent;
    head.lastChild.replaceWith(html("button", { type: "button", class: "plain", "aria-pressed": "false", title: "Show this stage everywhere" }, words));
  }
  new ResizeObserver(() => requestAnimationFrame(drawCharts)).observe($("charts"));
  drawCharts();
}
