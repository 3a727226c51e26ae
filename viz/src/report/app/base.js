// Small tools. Texts from the data only ever become text nodes and attribute values.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const name in attributes) {
    const value = attributes[name];
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) element.append(child);
  return element;
}
const html = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Reads a data element, packed or not.
async function read(id) {
  const element = $(id);
  if (!element) return null;
  if (element.type === "application/json") return JSON.parse(element.textContent);
  const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Numbers as the command prints them.
function scaled(value, step, units) {
  let unit = 0;
  while (Math.abs(value) >= step * 0.9995 && unit + 1 < units.length) {
    value /= step;
    unit++;
  }
  const size = Math.abs(value);
  const digits = unit === 0 && Number.isInteger(value) ? 0 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return value.toFixed(digits) + (units[unit] ? " " + units[unit] : "");
}
const bytes = (n) => scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const flops = (n) => scaled(n, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]);
const count = (n) => scaled(n, 1000, ["", "k", "M", "G"]);
const nanoseconds = (n) => (Math.abs(n) < 60e9 ? scaled(n, 1000, ["ns", "µs", "ms", "s"]) : (n / 60e9).toFixed(1) + " min");
const percent = (share) => (100 * share).toFixed(1) + " %";

// Shows a tool tip beside the pointer.
function tip(event, text) {
  const box = $("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const x = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8);
  const y = event.clientY + 18 + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 8 : event.clientY + 18;
  box.style.left = Math.max(4, x) + "px";
  box.style.top = Math.max(4, y) + "px";
}

const isCalm = matchMedia("(prefers-reduced-motion: reduce)");
