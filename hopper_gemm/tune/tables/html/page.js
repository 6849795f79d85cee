const page = JSON.parse(document.getElementById("data").textContent);
page.rows = page.rows.map((values) => Object.fromEntries(page.fields.map((name, at) => [name, values[at]])));
const SHOWN = 200; // rows of the table at a time
const views = [];

function element(name, text, parent) {
  const made = document.createElement(name);
  made.textContent = text; // never as HTML
  if (parent) parent.append(made);
  return made;
}

// Charts: one choice of a place for all of them.

const chooser = document.getElementById("place");
for (const place of page.places) element("option", place, chooser).value = place;
chooser.addEventListener("change", () => {
  for (const view of views) view.signal("place", chooser.value).runAsync();
  hide();
  draw();
});

function hide() {
  const without = [];
  page.charts.forEach(({ places }, at) => {
    const section = document.getElementById(`chart${at}`).parentElement;
    section.hidden = places !== null && !places.includes(chooser.value);
    if (section.hidden) without.push(section.querySelector("h2").textContent);
  });
  const told = document.getElementById("elsewhere");
  told.hidden = without.length === 0;
  told.textContent = `Not measured here; choose another place above for: ${without.join(", ")}.`;
}

page.charts.forEach(async ({ spec }, at) => {
  const whole = {
    width: "container",
    autosize: { type: "fit-x", contains: "padding" },
    ...(spec.data || spec.layer?.[0].data ? {} : { data: { values: page.rows } }),
    height: 320,
    ...spec,
    params: [{ name: "place", value: page.places[0] }, ...(spec.params || [])],
    config: { view: { stroke: "#ddd" }, axis: { labelLimit: 150 }, font: "system-ui, sans-serif" },
  };
  const options = { mode: "vega-lite", actions: false, renderer: "svg", logLevel: 1 }; // errors only
  const { view } = await vegaEmbed(`#chart${at}`, whole, options);
  const tell = view.tooltip();
  view.addEventListener("click", (event, item) => tell(null, event, item, item?.tooltip ?? null)); // for fingers
  views.push(view.signal("place", chooser.value));
});
hide();

// The table: the best rows first, sorted by a click on a heading, filtered by the boxes below the headings.

let sorted = page.columns.includes("speedup") ? "speedup" : null, up = false, shown = SHOWN;
const table = document.getElementById("rows"), head = table.createTHead(), body = table.createTBody();
const names = head.insertRow(), boxes = head.insertRow(), filters = {};
for (const column of page.columns) {
  const heading = element("th", "", names), button = element("button", column, heading);
  button.addEventListener("click", () => {
    up = sorted === column ? !up : true;
    sorted = column;
    draw();
  });
  const box = element("input", "", element("th", "", boxes));
  box.setAttribute("aria-label", `filter ${column}`);
  box.placeholder = "filter";
  box.addEventListener("input", () => {
    filters[column] = box.value.trim();
    shown = SHOWN;
    draw();
  });
}

// "> 1.02", "<= 3", "= 256" compare numbers; any other text must occur in the value.
function passes(value, filter) {
  const asked = /^(<=|>=|<|>|=)\s*(-?[\d.]+)$/.exec(filter);
  if (!asked) return String(value ?? "").toLowerCase().includes(filter.toLowerCase());
  if (typeof value !== "number") return false;
  const bound = Number(asked[2]);
  return { "<": value < bound, ">": value > bound, "=": value === bound, "<=": value <= bound, ">=": value >= bound }[asked[1]];
}

function order(one, other) {
  const missing = (value) => value === null || value === undefined || value === "";
  if (missing(one) || missing(other)) return missing(one) - missing(other); // missing ones stay last
  const both = typeof one === "number" && typeof other === "number";
  const found = both ? one - other : String(one).localeCompare(String(other));
  return up ? found : -found;
}

function draw() {
  const asked = Object.entries(filters).filter(([, filter]) => filter);
  const here = page.rows.filter((row) => row.place === chooser.value || !document.getElementById("only").checked);
  const kept = here.filter((row) => asked.every(([column, filter]) => passes(row[column], filter)));
  if (sorted) kept.sort((one, other) => order(one[sorted], other[sorted]));
  [...names.cells].forEach((cell, at) => {
    const own = page.columns[at] === sorted;
    cell.setAttribute("aria-sort", own ? (up ? "ascending" : "descending") : "none");
    cell.firstChild.textContent = page.columns[at] + (own ? (up ? " ▲" : " ▼") : "");
  });
  body.replaceChildren();
  for (const row of kept.slice(0, shown)) {
    const line = body.insertRow();
    for (const column of page.columns) {
      const value = row[column], cell = line.insertCell();
      cell.textContent = value ?? "";
      if (typeof value === "number") cell.className = "number";
      else if (String(value ?? "").length > 40) [cell.className, cell.title] = ["long", value];
    }
  }
  const more = document.getElementById("more");
  more.hidden = kept.length <= shown;
  document.getElementById("count").textContent = `${Math.min(shown, kept.length)} of ${kept.length} rows shown, ${page.rows.length} in all`;
}

document.getElementById("more").addEventListener("click", () => {
  shown += 5 * SHOWN;
  draw();
});
document.getElementById("only").addEventListener("change", draw);
draw();
