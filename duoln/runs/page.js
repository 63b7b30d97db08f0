// Draws panels of curves below each of their places. Every text is set as text, never as markup: names come from files.
"use strict";
function drawCurves(home, report) {
  const height = 260, right = 24, top = 10, bottom = 35, letter = 7, few = 20;
  let width = 800;
  const shown = report.lines.map(() => true);
  const panels = [];

  function add(parent, name, attributes, text) {
    const svg = ["svg", "g", "line", "path", "text", "circle"].includes(name);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.appendChild(node);
    return node;
  }

  function ticks(low, high, logarithmic, most, least) {
    const marks = [];
    if (logarithmic) {
      for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++)
        for (const digit of [1, 2, 5]) marks.push(digit * 10 ** k);
    } else {
      const rough = Math.max((high - low) / most, least) || 1, power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].find(digit => digit * power >= rough) * power;
      for (let k = Math.ceil(low / step); k * step <= high * (1 + 1e-9); k++) marks.push(k * step);
    }
    return marks.filter(mark => mark >= low && mark <= high);
  }

  function number(value, percent) {
    return percent ? `${+(100 * value).toPrecision(3)}%` : `${+value.toPrecision(4)}`;
  }

  function scale(values, logarithmic, from, to) {
    let low = Math.min(...values), high = Math.max(...values);
    if (low === high) { low -= Math.abs(low) / 10 || 1; high += Math.abs(high) / 10 || 1; }
    const of = logarithmic ? Math.log10 : value => value;
    const place = value => from + (of(value) - of(low)) / (of(high) - of(low)) * (to - from);
    return Object.assign(place, { low, high });
  }

  function draw(panel) {
    panel.svg.replaceChildren();
    panel.values.replaceChildren();
    const visible = panel.data.lines.map((line, k) => shown[k] ? line : []);
    const points = visible.flat();
    if (!points.length) return;
    const logarithmic = panel.data.logarithmic;
    panel.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const y = scale(points.flatMap(p => [p[2], p[3]]), logarithmic, height - bottom, top);
    const marked = ticks(y.low, y.high, logarithmic, 5, 0).map(mark => [mark, number(mark, panel.data.percent)]);
    const left = 12 + letter * Math.max(...marked.map(([, text]) => text.length), 0);
    const x = scale(points.map(p => p[0]), false, left, width - right);
    for (const [mark, text] of marked) {
      add(panel.svg, "line", { class: "grid", x1: left, x2: width - right, y1: y(mark), y2: y(mark) });
      add(panel.svg, "text", { x: left - 6, y: y(mark) + 4, "text-anchor": "end" }, text);
    }
    const whole = report.axis === "epoch" && x.high > 1 ? 1 : 0;  // no tick at a part of an epoch
    for (const mark of ticks(x.low, x.high, false, width / 120, whole))
      add(panel.svg, "text", { x: x(mark), y: height - bottom + 16, "text-anchor": "middle" }, number(mark, false));
    add(panel.svg, "text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, report.axis);
    visible.forEach((line, k) => {
      if (!line.length) return;
      const look = report.lines[k];
      const path = (part, places) => places.map((p, i) => `${i ? "L" : "M"}${x(p[0])},${y(p[part])}`).join("");
      if (line.some(p => p[2] < p[3]))
        add(panel.svg, "path", { d: `${path(3, line)}${path(2, [...line].reverse()).replace("M", "L")}Z`,
                                 fill: look.colour, opacity: 0.18 });
      add(panel.svg, "path", { d: path(1, line), fill: "none", stroke: look.colour, "stroke-width": 2,
                               "stroke-dasharray": look.dashes.map(length => 2 * length).join(" ") });
      if (line.length < few)
        for (const p of line) add(panel.svg, "circle", { cx: x(p[0]), cy: y(p[1]), r: 3, fill: look.colour });
    });
    const marks = add(panel.svg, "g");
    panel.svg.onpointermove = event => {
      const box = panel.svg.getBoundingClientRect();
      point(panel, visible, x, y, marks, (event.clientX - box.left) * width / box.width);
    };
    panel.svg.onpointerleave = () => { marks.replaceChildren(); panel.values.replaceChildren(); };
  }

  function point(panel, visible, x, y, marks, at) {
    marks.replaceChildren();
    panel.values.replaceChildren();
    const places = visible.flat().map(p => p[0]);
    const nearest = places.reduce((best, place) => Math.abs(x(place) - at) < Math.abs(x(best) - at) ? place : best);
    add(marks, "line", { class: "pointer", x1: x(nearest), x2: x(nearest), y1: top, y2: height - bottom });
    add(panel.values, "span", {}, `${report.axis} ${number(nearest, false)}`);
    visible.forEach((line, k) => {
      if (!line.length) return;
      const p = line.reduce((best, q) => Math.abs(q[0] - nearest) < Math.abs(best[0] - nearest) ? q : best);
      add(marks, "circle", { cx: x(p[0]), cy: y(p[1]), r: 4, fill: report.lines[k].colour });
      const range = p[2] < p[3] ? ` (${number(p[2], panel.data.percent)}-${number(p[3], panel.data.percent)})` : "";
      add(panel.values, "span", {}, `${report.lines[k].label}: ${number(p[1], panel.data.percent)}${range}`);
    });
  }

  const legend = add(home, "ul", { class: "legend" });
  report.lines.forEach((line, k) => {
    const button = add(add(legend, "li"), "button", { type: "button", "aria-pressed": "true" });
    const sample = add(button, "svg", { viewBox: "0 0 40 10", width: 40, height: 10, style: "display:inline;width:40px" });
    add(sample, "line", { x1: 0, x2: 40, y1: 5, y2: 5, stroke: line.colour, "stroke-width": 3,
                          "stroke-dasharray": line.dashes.map(length => 2 * length).join(" ") });
    add(button, "span", {}, ` ${line.label}`);
    button.onclick = () => {
      shown[k] = !shown[k];
      button.classList.toggle("hidden", !shown[k]);
      button.setAttribute("aria-pressed", String(shown[k]));
      panels.forEach(draw);
    };
  });
  for (const data of report.panels) {
    add(home, "h3", {}, data.heading);
    const svg = add(home, "svg", { role: "img", "aria-label": data.heading });
    panels.push({ data, svg, values: add(home, "p", { class: "values" }) });
  }
  function fit() {  // a unit of the drawing is a pixel of the screen, so that its text has the size of the page's
    width = home.clientWidth || 800;
    panels.forEach(draw);
  }
  fit();
  globalThis.addEventListener?.("resize", fit);
}

for (const home of document.querySelectorAll(".curves"))
  drawCurves(home, JSON.parse(home.querySelector("script").textContent));
