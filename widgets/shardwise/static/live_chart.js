// A chart with its sentence, its table and its files, fed by a channel.
function datasetsOf(value) {
  return Array.isArray(value) ? { rows: value } : (value ?? {});
}

function chartParts(model) {
  const heading = uniqueId("sw-title");
  const box = make("div", { className: "sw-plot" });
  const error = make("p", { className: "sw-error", role: "alert", hidden: true });
  const summary = make("p", { className: "sw-summary" });
  const said = make("p", { className: "sw-said", aria: { live: "polite" } });
  const table = make("div", { className: "sw-scroll", tabIndex: 0, role: "region" });
  const buttons = make("div", { className: "sw-buttons", role: "group" });
  const details = make("details", {}, make("summary", { text: "Table and downloads" }), table, buttons);
  const title = make("figcaption", { id: heading, className: "sw-title" });
  const figure = make("figure", { className: "shardwise sw-chart", aria: { labelledby: heading } },
    title, box, error, summary, said, details);
  const named = () => {
    title.textContent = model.get("title");
    table.setAttribute("aria-label", `Table: ${model.get("title")}`);
    buttons.setAttribute("aria-label", `Download: ${model.get("title")}`);
  };
  named();
  return { box, error, summary, said, table, buttons, details, figure, named };
}

function cellText(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  return value.toLocaleString("en-US", { maximumSignificantDigits: Math.abs(value) < 1e6 ? 4 : 15 });
}

function htmlTable(title, columns, rows) {
  const head = make("tr", {}, ...columns.map(([, text]) => make("th", { scope: "col", text })));
  const body = rows.map((row) => make("tr", {}, ...columns.map(([field], i) => {
    const numeric = typeof row[field] === "number";
    const properties = { text: cellText(row[field]), className: numeric ? "sw-number" : "" };
    return i === 0 ? make("th", { ...properties, scope: "row" }) : make("td", properties);
  })));
  return make("table", { className: "sw-table" }, make("caption", { text: title }),
    make("thead", {}, head), make("tbody", {}, ...body));
}

function addDownloads(parts, model, opened, rows) {
  const name = () => slug(model.get("title"));
  const picture = () => standaloneSvg(parts.box.querySelector("svg").outerHTML, parts.box);
  const files = {
    SVG: () => saveFile(`${name()}.svg`, picture(), "image/svg+xml"),
    PNG: async () => {
      const { width, height } = parts.box.querySelector("svg").getBoundingClientRect();
      saveFile(`${name()}.png`, await pngOf(picture(), width, height));
    },
    CSV: () => saveFile(`${name()}.csv`, csvText(model.get("columns"), rows()), "text/csv"),
    JSON: () => saveFile(`${name()}.json`, JSON.stringify(rows(), null, 2), "application/json"),
  };
  for (const [kind, save] of Object.entries(files)) {
    const button = make("button", { type: "button", text: `Download ${kind}` });
    button.onclick = () => {
      if (opened() || !["SVG", "PNG"].includes(kind)) save();
    };
    parts.buttons.append(button);
  }
}

function render({ model, el }) {
  const channel = channelNamed(model.get("channel"));
  const key = model.get("key");
  const parts = chartParts(model);
  const { box, error, details } = parts;
  const voice = announcer(parts.said);
  let opened, opening, width = 0, onScreen = false, gone = false;
  hosted(el, parts.figure);

  const datasets = () => datasetsOf(channel.data[key]);
  const rows = () => datasets()[model.get("table")] ?? [];
  const fail = (reason) => {
    error.textContent = `This chart could not be drawn: ${reason.message ?? reason}`;
    error.hidden = false;
  };
  function drawPlot(view) {
    fitView(view, width);
    pushRows(view, datasets());
    view.vega.run();
  }
  function drawWords() {
    const title = model.get("title");
    const sentence = channel.data[`${key}.text`] ?? "";
    if (parts.summary.textContent !== sentence) parts.summary.textContent = sentence;
    box.querySelector("svg")?.setAttribute("aria-label", `${title}. ${sentence}`);
    if (model.get("announce")) voice.say(sentence);
    if (details.open) parts.table.replaceChildren(htmlTable(title, model.get("columns"), rows()));
  }

  // A view that failed half-way through an update cannot be trusted with the next one.
  function outdated() {
    return !opened || opened.broken || opened.spec !== model.get("spec")
      || opened.narrow !== width < NARROW;
  }
  // A new picture replaces the old one only when it is complete, with the newest rows in it.
  async function embed() {
    const spec = model.get("spec");
    if (opening === spec) return;
    opening = spec;
    let next;
    try {
      next = await openView(await channel.library, spec, box, width);
      if (opening !== spec || gone) return next.close();
      drawPlot(next);
      box.replaceChildren(next.host);
      opened?.close();
      opened = next;
      error.hidden = true;
    } catch (reason) {
      if (opening !== spec) return;
      if (next && next !== opened) next.close();
      fail(reason);
    }
    opening = undefined;
    drawWords();
    listener.drawn(channel.serial);
  }
  const listener = {
    keys: [key, `${key}.text`],
    laidOut: () => width > 0,
    shown: () => onScreen && listener.laidOut(),
    draw() {
      if (outdated()) return void embed();
      try {
        drawPlot(opened);
        error.hidden = true;
      } catch (reason) {
        opened.broken = true;
        fail(reason);
      }
      drawWords();
    },
    drawn(serial) {
      if (opened && !opening && !listener.stale) parts.figure.dataset.drawn = serial;
    },
  };
  const redraw = () => {
    listener.stale = true;
    channel.schedule();
  };
  // The width is kept from here: asking for it while drawing would lay the page out each time.
  const sized = new ResizeObserver(([{ contentRect }]) => {
    width = Math.floor(contentRect.width);
    if (listener.stale) channel.schedule();
    else if (outdated()) redraw();
    else if (fitView(opened, width)) opened.vega.run();
  });
  const seen = new IntersectionObserver((entries) => {
    onScreen = entries.at(-1).isIntersecting;
    if (onScreen && listener.stale) channel.schedule();
  }, { rootMargin: "100px" });
  sized.observe(box);
  seen.observe(parts.figure);
  details.addEventListener("toggle", drawWords);
  addDownloads(parts, model, () => opened, rows);
  model.on("change:spec", redraw);
  model.on("change:title change:columns", () => {
    parts.named();
    drawWords();
  });
  const stop = listen(channel, listener);
  return () => {
    gone = true;
    stop();
    sized.disconnect();
    seen.disconnect();
    voice.stop();
    opened?.close();
  };
}

export default { render };
