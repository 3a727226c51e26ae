// Puts the parts together.
function sortable(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    if (cell.hasAttribute("data-plain")) return;
    const words = cell.textContent;
    const sort = button(words, () => {
      const order = cell.getAttribute("aria-sort") === "descending" ? 1 : -1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
      const value = (row) => {
        const of = row.cells[column];
        return of ? (of.dataset.v !== undefined ? Number(of.dataset.v) : of.textContent) : "";
      };
      const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
      body.append(...[...body.rows].sort((a, b) => order * compare(value(a), value(b))));
    });
    cell.replaceChildren(sort);
  });
}

function startTheme() {
  const isDark = () => {
    const chosen = document.documentElement.style.colorScheme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  $("theme").addEventListener("click", () => {
    document.documentElement.style.colorScheme = isDark() ? "light" : "dark";
  });
}

async function savePlan() {
  const plan = await read("plan");
  const address = URL.createObjectURL(new Blob([JSON.stringify(plan, null, 2)], { type: "application/json" }));
  const anchor = html("a", { href: address, download: "plan.json" });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// On paper the graph is one picture that fills a page.
function startPrint() {
  let kept = null;
  addEventListener("beforeprint", () => {
    kept = { view: { ...view }, selected };
    const [width, height] = [700, 940];
    const k = Math.min(width / (W[0] + 8), height / (H[0] + 8), 1);
    Object.assign(view, { x: (width - W[0] * k) / 2, y: 4, k });
    const tall = Math.ceil(Math.min(height, H[0] * k + 8));
    canvas.setAttribute("viewBox", "0 0 " + width + " " + tall);
    canvas.style.setProperty("aspect-ratio", width + " / " + tall);
    selected = -1;
    draw([width, tall]);
  });
  addEventListener("afterprint", () => {
    canvas.removeAttribute("viewBox");
    canvas.style.removeProperty("aspect-ratio");
    Object.assign(view, kept.view);
    selected = kept.selected;
    redraw(true);
  });
}

document.documentElement.classList.add("live");
startTheme();
document.querySelectorAll("table.sort").forEach(sortable);
$("save")?.addEventListener("click", savePlan);
listen();
setColour(colour, true);
openSome(80);
layout();
fit(true);
details(-1);
follow();
startTimelines();
await startWhatIf();
startPrint();
document.documentElement.dataset.ready = "yes";
