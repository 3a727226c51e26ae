// What the simulator said of the same stages under other circumstances. Nothing is computed here but ratios.
const METRICS = {
  each: { label: "time per micro-batch", of: (cell, m) => (cell.step * 1e9) / m, show: nanoseconds },
  step: { label: "time per step", of: (cell) => cell.step * 1e9, show: nanoseconds },
  bubble: { label: "bubble", of: (cell) => cell.bubble, show: percent },
  memory: { label: "fullest device", of: (cell) => cell.memory, show: percent },
};

async function startWhatIf() {
  const grid = data.what_if;
  if (!grid || !$("grid")) return;
  const { micro_batches: counts, schedules, links, planned } = grid;
  const cell = (link, schedule, at) => grid.cells[(link * schedules.length + schedule) * counts.length + at];
  let [link, schedule, at] = planned;
  // Steps that the page has, by the number of their cell.
  const steps = new Map(await read("steps"));
  const choose = () => {
    const isPlanned = link === planned[0] && schedule === planned[1] && at === planned[2];
    const words = schedules[schedule] + ", " + counts[at] + " micro-batches, without its transfers";
    showStep(isPlanned ? null : steps.get((link * schedules.length + schedule) * counts.length + at), words);
  };
  $("planned").addEventListener("click", () => {
    [link, schedule, at] = planned;
    choose();
    draw();
  });
  for (const name in METRICS) $("metric").append(html("option", { value: name }, METRICS[name].label));
  const buttons = links.map((factor, number) => {
    const words = "links " + (factor === 1 ? "as planned" : factor < 1 ? "÷" + 1 / factor : "×" + factor);
    const element = button(words, () => {
      link = number;
      choose();
      draw();
    });
    $("links").append(element);
    return element;
  });

  const draw = () => {
    const metric = METRICS[$("metric").value];
    buttons.forEach((element, number) => element.setAttribute("aria-pressed", number === link));
    const value = (s, m) => {
      const one = cell(link, s, m);
      return one.step === undefined ? null : metric.of(one, counts[m]);
    };
    const all = schedules.flatMap((_, s) => counts.map((_, m) => value(s, m))).filter((v) => v !== null);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const fitting = schedules.flatMap((_, s) => counts.map((_, m) => (cell(link, s, m).memory > 1 || !grid.is_planned[s] ? null : value(s, m))));
    const best = Math.min(...fitting.filter((v) => v !== null));
    const head = html("tr", {}, html("th", {}, "schedule"), ...counts.map((n) => html("th", { class: "n" }, String(n))));
    const body = schedules.map((name, s) => {
      const cells = counts.map((n, m) => {
        const one = cell(link, s, m);
        const v = value(s, m);
        const isPlanned = link === planned[0] && s === planned[1] && m === planned[2];
        const level = v === null ? -1 : Math.min(5, Math.floor((Math.max(0, v - low) / (high - low || 1)) * 6));
        const isFull = one.memory > 1;
        const element = html("button", {
          type: "button",
          class: "cell" + (level >= 0 ? " c" + level : " none") + (isFull ? " full" : "") + (isPlanned ? " planned" : ""),
          "aria-pressed": s === schedule && m === at ? "true" : "false",
          "data-at": s + " " + m,
          tabindex: s === schedule && m === at ? 0 : -1,
          "aria-label": name + ", " + n + " micro-batches: " + (v === null ? "cannot run" : metric.show(v)),
        });
        element.textContent = v === null ? "–" : metric.show(v) + (v === best && !isFull && grid.is_planned[s] ? " ★" : "");
        element.addEventListener("click", () => {
          [schedule, at] = [s, m];
          choose();
          draw();
        });
        element.addEventListener("keydown", (event) => {
          const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
          const next = by && $("grid").querySelector('[data-at="' + (s + by[0]) + " " + (m + by[1]) + '"]');
          if (!next) return;
          event.preventDefault();
          next.focus();
        });
        return html("td", {}, element);
      });
      return html("tr", {}, html("th", { scope: "row", title: grid.summaries[s] }, name), ...cells);
    });
    const focused = document.activeElement?.getAttribute("aria-label");
    $("grid").replaceChildren(html("table", { class: "what-if" }, html("thead", {}, html("tr", {}, html("td", {}), html("th", { colspan: counts.length, scope: "colgroup" }, "micro-batches per step")), head), html("tbody", {}, ...body)));
    for (const element of $("grid").querySelectorAll("button")) {
      if (focused && element.getAttribute("aria-label") === focused) element.focus();
    }
    $("answer").textContent = answer();
  };

  const answer = () => {
    const [base, now] = [cell(...planned), cell(link, schedule, at)];
    const words = schedules[schedule] + " with " + counts[at] + " micro-batches" + (links[link] === 1 ? "" : ", links ×" + links[link]) + ": ";
    if (now.step === undefined) return words + (now.reason || "cannot run");
    const [a, b] = [base.step / counts[planned[2]], now.step / counts[at]];
    const gain = a && b ? a / b - 1 : 0;
    const than = Math.abs(gain) < 0.0005 ? "as fast as the plan" : percent(Math.abs(gain)) + (gain > 0 ? " more" : " less") + " throughput than the plan";
    const room = now.memory === undefined ? "" : now.memory > 1 ? " — does not fit: the fullest device would need " + percent(now.memory) : ", the fullest device uses " + percent(now.memory);
const drawn = steps.has((link * schedules.length + schedule) * counts.length + at) || cell(link, schedule, at) === base;
    const where = drawn ? "" : " Its step is not in this page; `model-analyze simulate` draws it.";
    return words + "a step takes " + nanoseconds(now.step * 1e9) + ", " + than + ", bubble " + percent(now.bubble) + room + ". " + grid.summaries[schedule][0].toUpperCase() + grid.summaries[schedule].slice(1) + "." + where;
  };
  $("metric").addEventListener("change", draw);
  draw();
}
