// Structured text from the channel; each block becomes elements whose text is set as text.
const STATE_WORDS = { chosen: "chosen", failed: "does not fit", done: "done", skipped: "not needed" };

function stepItem({ text, state = "", detail = "" }) {
  const item = make("li", { className: "sw-step", data: { state } });
  if (state) item.append(make("span", { className: "sw-state", text: `${STATE_WORDS[state] ?? state}: ` }));
  item.append(make("span", { text }));
  if (detail) item.append(make("p", { className: "sw-help", text: detail }));
  return item;
}

const BLOCKS = {
  heading: ({ text }) => make("h3", { text }),
  paragraph: ({ text }) => make("p", { text }),
  error: ({ text }) => make("p", { className: "sw-error", text }),
  code: ({ text }) => make("pre", { text }),
  facts: ({ rows }) => make("dl", {}, ...rows.flatMap(([name, text]) =>
    [make("dt", { text: name }), make("dd", { text })])),
  steps: ({ items }) => make("ol", {}, ...items.map(stepItem)),
  list: ({ items }) => make("ul", {}, ...items.map((text) => make("li", { text }))),
  details: ({ summary, blocks }) =>
    make("details", { data: { summary } }, make("summary", { text: summary }), ...elements(blocks)),
};

function elements(value) {
  if (typeof value === "string") return value ? [make("p", { text: value })] : [];
  return (value ?? []).map((block) => BLOCKS[block.kind](block));
}

// The headings that it begins with, or its first element.
function plainText(value) {
  const found = elements(value);
  const end = found.findIndex((element) => element.tagName !== "H3");
  return found.slice(0, Math.max(1, end)).map((element) => element.textContent).join(" ");
}

function render({ model, el }) {
  const channel = channelNamed(model.get("channel"));
  const key = model.get("key");
  const body = make("div", { className: "shardwise sw-text" });
  const said = make("p", { className: "shardwise sw-said", aria: { live: "polite" } });
  const voice = announcer(said);
  hosted(el, body, said);

  function draw() {
    const open = new Set([...body.querySelectorAll("details[open]")].map((d) => d.dataset.summary));
    body.replaceChildren(...elements(channel.data[key]));
    for (const d of body.querySelectorAll("details")) d.open = open.has(d.dataset.summary);
    if (model.get("announce")) voice.say(plainText(channel.data[key]));
  }
  const stop = listen(channel, {
    keys: [key], draw, laidOut: () => true, shown: () => true,
  });
  return () => {
    stop();
    voice.stop();
  };
}

export default { render };
