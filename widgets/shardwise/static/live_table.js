// A table from the channel; a row that can be chosen ends in a button, and Python hears which.
function cellOf(value) {
  if (!Array.isArray(value) || value.length === 0) return String(value);
  return make("ul", {}, ...value.map((text) => make("li", { text })));
}

// On a narrow screen rows become blocks and each cell says its heading, which takes a table's
// roles from it; so they are written out.
function tableOf({ caption, columns, rows }, choose) {
  const numeric = (i) => (columns[i][1] === "number" ? "sw-number" : "");
  const cell = (text, i) => make(i ? "td" : "th", {
    className: numeric(i), role: i ? "cell" : "rowheader", data: { heading: columns[i][0] },
  }, cellOf(text));
  const button = (pick, action, what) => {
    const made = make("button", { type: "button", text: action, aria: { label: `${action}: ${what}` } });
    made.onclick = () => choose(pick);
    return make("td", { role: "cell" }, made);
  };
  const head = make("tr", { role: "row" }, ...columns.map(([text], i) =>
    make("th", { scope: "col", role: "columnheader", text, className: numeric(i) })));
  if (rows.some((row) => row.pick !== undefined)) head.append(make("td"));
  const body = rows.map(({ cells, pick, action }) => make("tr", { role: "row" }, ...cells.map(cell),
    ...(pick === undefined ? [] : [button(pick, action, cells[0])])));
  return make("table", { className: "sw-table sw-blocks", role: "table" },
    make("caption", { text: caption }), make("thead", { role: "rowgroup" }, head),
    make("tbody", { role: "rowgroup" }, ...body));
}

function render({ model, el }) {
  const channel = channelNamed(model.get("channel"));
  const key = model.get("key");
  const box = make("div", { className: "shardwise sw-wide", tabIndex: 0, role: "region" });
  hosted(el, box);

  // The reader's place among the buttons outlives a new table.
  function draw() {
    const table = channel.data[key];
    const place = [...box.querySelectorAll("button")].indexOf(document.activeElement);
    if (!table) return void box.replaceChildren();
    box.setAttribute("aria-label", table.caption);
    box.replaceChildren(tableOf(table, (picked) => model.send({ picked })));
    if (place >= 0) (box.querySelectorAll("button")[place] ?? box).focus({ preventScroll: true });
  }
  return listen(channel, { keys: [key], draw, laidOut: () => true, shown: () => true });
}

export default { render };
