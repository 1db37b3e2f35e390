// One Vega view in one box: embedded once, then fed with rows, resized with the box.
const INK = "var(--sw-ink)";
const MUTED = "var(--sw-muted)";
const GRID = "var(--sw-grid)";

// Below this width a legend beside the plot would leave no plot.
const NARROW = 460;

// Colors are CSS variables, so a change of theme needs no new chart.
function themeConfig(font, narrow) {
  const guide = { labelColor: INK, titleColor: INK, labelFontSize: 12, titleFontSize: 12 };
  return {
    background: null,
    font,
    axis: { ...guide, gridColor: GRID, domainColor: MUTED, tickColor: MUTED, titleFontWeight: 500 },
    header: guide,
    legend: { ...guide, titleFontWeight: 500, ...(narrow ? { orient: "bottom", columns: 2 } : {}) },
    rule: { color: INK },
    text: { color: INK },
    title: { color: INK, subtitleColor: INK },
    view: { stroke: null },
  };
}

function merged(base, over) {
  const result = { ...base };
  for (const [key, value] of Object.entries(over ?? {})) {
    const both = [result[key], value].every((v) => v && typeof v === "object" && !Array.isArray(v));
    result[key] = both ? merged(result[key], value) : value;
  }
  return result;
}

async function openView(vegaEmbed, spec, box, width) {
  const host = make("div", { className: "sw-view" });
  const copy = structuredClone(spec);
  const narrow = width < NARROW;
  copy.config = merged(themeConfig(getComputedStyle(box).fontFamily, narrow), copy.config);
  if (copy.autosize?.type === "fit-x") copy.width = width;
  const embedded = await vegaEmbed(host, copy, { actions: false, renderer: "svg", defaultStyle: false });
  const close = () => embedded.finalize();
  return { host, spec, narrow, vega: embedded.view, close, sent: new Map() };
}

// Rows of the same shape keep their marks in the page, and only what differs is passed on; that
// spares the browser most of the work. Otherwise the rows are replaced.
function pushRows(opened, datasets) {
  const { vega, sent } = opened;
  for (const [name, rows] of Object.entries(datasets)) {
    const before = sent.get(name);
    if (before && sameShape(before.rows, rows)) modifyRows(vega, name, before, rows);
    else {
      // Vega writes on the rows it is given, and others read them, so it gets its own.
      const tuples = rows.map((row) => ({ ...row }));
      vega.data(name, tuples);
      sent.set(name, { rows, tuples });
    }
  }
}

function sameShape(before, rows) {
  if (before.length !== rows.length || rows.length === 0) return false;
  const fields = Object.keys(rows[0]);
  return rows.every((row, i) => Object.keys(row).length === fields.length
    && fields.every((field) => field in row && field in before[i]));
}

function modifyRows(vega, name, before, rows) {
  const change = vega.changeset();
  let differs = false;
  rows.forEach((row, i) => {
    for (const [field, value] of Object.entries(row)) {
      if (Object.is(before.rows[i][field], value)) continue;
      change.modify(before.tuples[i], field, value);
      differs = true;
    }
  });
  before.rows = rows;
  if (differs) vega.change(name, change);
}

function fitView(opened, width) {
  const fits = opened.spec.autosize?.type === "fit-x";
  if (!fits || width === 0 || opened.vega.width() === width) return false;
  opened.vega.width(width);
  return true;
}
