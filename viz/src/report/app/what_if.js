// What the simulator said of the same stages under other circumstances. Nothing is computed here but ratios.
const METRICS = {
  each: { label: "time per micro-batch", of: (cell, m) => (cell.step * 1e9) / m, show: nanoseconds },
  step: { label: "time per step", of: (cell) => cell.step * 1e9, show: nanoseconds },
  bubble: { label: "bubble", of: (cell) => cell.bubble, show: percent },
  memory: { label: "fullest device", of: (cell) => cell.memory, show: percent },
};

// Returns a function that puts another step's devices into the table of devices, or without one the plan's again.
function startDevices(uses) {
  const rows = [...document.querySelectorAll("#devices tbody tr")];
  const own = rows.map((row) => [...row.cells].map((cell) => ({ nodes: [...cell.childNodes], v: cell.dataset.v })));
  const limits = own.map((cells) => Number(cells[3].v));
  const words = $("circumstances").textContent;
  const bar = (device, limit, most) => {
    const wide = (of) => (240 * of) / (most || 1);
    const element = svg("svg", { class: "bar", viewBox: "0 -2 240 18", preserveAspectRatio: "none", role: "img", "aria-label": "memory" });
    let x = 0;
    for (const [part, size] of [...device.parts.entries()].filter(([, size]) => size > 0).sort((a, b) => b[1] - a[1])) {
      element.append(svg("rect", { class: "m-" + part, x, width: wide(size), height: 14 }, svg("title", {}, uses[part] + " " + bytes(size))));
      x += wide(size);
    }
    element.append(svg("path", { class: "limit", d: "M" + Math.min(239, wide(limit)) + " -2V16" }));
    return element;
  };
  return (now, title) => {
    const isThere = now?.devices?.length === rows.length;
    const most = isThere && Math.max(...limits, ...now.devices.map((device) => device.peak));
    $("circumstances").textContent = isThere ? title : words;
    $("other").textContent = !now ? "" : isThere ? "What if: " + title : "The table shows the plan; " + title + " is not in this page.";
    rows.forEach((row, number) => {
      const device = isThere && now.devices[number];
      const set = (column, value, text) => {
        row.cells[column].dataset.v = value;
        row.cells[column].replaceChildren(text);
      };
      row.classList.toggle("bad", (isThere ? device.peak : Number(own[number][2].v)) > limits[number]);
      own[number].forEach(({ nodes, v }, column) => {
        row.cells[column].replaceChildren(...nodes);
        if (v !== undefined) row.cells[column].dataset.v = v;
      });
      if (!isThere) return;
      const [used, busy, idle] = [device.peak / Math.max(1, limits[number]), device.busy / now.step, device.idle / now.step];
      row.cells[1].replaceChildren(bar(device, limits[number], most));
      set(2, device.peak, bytes(device.peak));
      set(4, used, percent(used));
      set(5, busy, percent(busy));
      set(6, idle, percent(idle));
    });
  };
}

async function startWhatIf() {
  const grid = data.what_if;
  if (!grid || !$("grid")) return;
  const { micro_batches: counts, schedules, links, planned } = grid;
  const cell = (link, schedule, at) => grid.cells[(link * schedules.length + schedule) * counts.length + at];
  let [link, schedule, at] = planned;
  // Steps that the page has, by the number of their cell.
  const steps = new Map(await read("steps"));
  const devices = (await read("cells")) || [];
  const number = () => (link * schedules.length + schedule) * counts.length + at;
  const showDevices = startDevices(grid.uses);
  const again = document.querySelectorAll("button.planned");
  const choose = () => {
    const isPlanned = link === planned[0] && schedule === planned[1] && at === planned[2];
    const words = schedules[schedule] + " · " + counts[at] + " micro-batches" + (links[link] === 1 ? "" : " · links ×" + links[link]);
    showStep(isPlanned ? null : steps.get(number()), words.replaceAll(" ·", ",") + ", without its transfers");
    showDevices(isPlanned ? null : { step: cell(link, schedule, at).step, devices: devices[number()] }, words);
    for (const element of again) element.hidden = isPlanned;
  };
  for (const element of again) {
    element.addEventListener("click", () => {
      [link, schedule, at] = planned;
      choose();
      draw();
    });
  }
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
    const drawn = steps.has(number()) || cell(link, schedule, at) === base;
    const where = drawn ? "" : " Its step is not in this page; `model-analyze simulate` draws it.";
    return words + "a step takes " + nanoseconds(now.step * 1e9) + ", " + than + ", bubble " + percent(now.bubble) + room + ". " + grid.summaries[schedule][0].toUpperCase() + grid.summaries[schedule].slice(1) + "." + where;
  };
  $("metric").addEventListener("change", draw);
  draw();
}
