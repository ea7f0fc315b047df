"use strict";
// Text and lines of the charts have the page's own colour, so one drawing serves light mode, dark mode and print.
const config = {
  background: "transparent", font: "system-ui, -apple-system, Segoe UI, sans-serif", view: { stroke: null },
  axis: { labelColor: "currentColor", titleColor: "currentColor", domainColor: "gray", tickColor: "gray", gridColor: "rgba(128,128,128,.22)", titleFontWeight: "normal" },
  legend: { labelColor: "currentColor", titleColor: "currentColor", titleFontWeight: "normal", orient: "bottom", labelLimit: 400, symbolBaseFillColor: "gray", symbolBaseStrokeColor: "gray" },
};
const views = {};
async function draw(element) {
  const name = element.dataset.chart;
  const spec = JSON.parse(document.getElementById("spec-" + name).textContent);
  delete spec.config;
  if (element.closest(".square")) spec.height = Math.min(element.clientWidth, 460) - 60;
  const narrow = element.clientWidth < 480;
  config.legend.columns = name.endsWith("errors") || element.clientWidth < 340 ? 1 : narrow ? 2 : 6;
  config.legend.layout = { bottom: { direction: narrow ? "vertical" : "horizontal", anchor: "start", margin: 8 } };
  const { view } = await vegaEmbed(element, spec, { actions: false, renderer: "svg", config });
  views[name] = view;
  if (name.startsWith("confusion")) view.addEventListener("click", (event, item) => item && item.datum && "t" in item.datum && listErrors(name, item.datum.t));
}
function listErrors(matrix, label) {
  const { names, steps, predicted_as: lists } = JSON.parse(document.getElementById("confusions").textContent);
  const panel = document.getElementById("predicted-as");
  const title = document.createElement("b");
  const when = matrix === "confusion-before" ? ", before the correction" : "";
  const name = names[label] + (steps[label] ? ` (learned in step ${steps[label]})` : "");
  const list = document.createElement("ol");
  for (const [predicted, images] of lists[matrix][label]) {
    const line = document.createElement("li");
    line.textContent = `${names[predicted]}: ${images} image${images === 1 ? "" : "s"}` + (steps[predicted] ? ` (step ${steps[predicted]})` : "");
    list.append(line);
  }
  title.textContent = name + (list.children.length ? " is also predicted as" : " is never misclassified") + when;
  panel.replaceChildren(title, list);
  panel.hidden = false;
}
function value(row, column, kind) {
  const cell = row.cells[column], text = cell.dataset.value ?? cell.textContent.trim();
  if (kind === "text") return text.toLowerCase();
  const number = parseFloat(text.replace("−", "-"));
  return Number.isNaN(number) ? -Infinity : number;
}
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th button").forEach((button, column) => button.addEventListener("click", () => {
    const head = button.closest("th"), body = table.tBodies[0], kind = head.dataset.kind;
    const next = head.getAttribute("aria-sort") === "descending" || (kind === "text" && !head.hasAttribute("aria-sort")) ? "ascending" : "descending";
    table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    const rows = [...body.rows].map(row => [value(row, column, kind), row]);
    rows.sort(([a], [b]) => sign * (a < b ? -1 : a > b ? 1 : 0));
    body.append(...rows.map(([, row]) => row));
  }));
}
const search = document.getElementById("search");
if (search) search.addEventListener("input", () => {
  const wanted = search.value.trim().toLowerCase();
  for (const row of document.querySelectorAll("#classes tbody tr")) row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
});
(async () => {
  for (const element of document.querySelectorAll(".chart")) {
    await draw(element);
    await new Promise(done => setTimeout(done));  // keep the page responsive while it draws
  }
  document.documentElement.dataset.drawn = "yes";
})();
