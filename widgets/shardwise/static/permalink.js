// The scenario in the address. Under Voila the page's own address is kept; JupyterLab's address
// belongs to JupyterLab, so there the link is only shown and copied.
const underVoila = () => document.body.dataset.voila === "voila";

function queryOf(model) {
  return channelNamed(model.get("channel")).data[model.get("key")] ?? "";
}

function follow(model, draw) {
  return listen(channelNamed(model.get("channel")), {
    keys: [model.get("key")], draw, laidOut: () => true, shown: () => true,
  });
}

function initialize({ model }) {
  if (!underVoila()) return undefined;
  let timer;
  model.set("search", location.search);
  model.save_changes();
  // Chromium refuses more than 200 of these in 30 s, so a drag writes once, when it rests.
  const write = () => {
    const search = queryOf(model) && `?${queryOf(model)}`;
    if (search !== location.search) history.replaceState(history.state, "", location.pathname + search);
  };
  // The first picture is the default's; the address holds what the reader asked for.
  let opening = true;
  const stop = follow(model, () => {
    clearTimeout(timer);
    if (!opening) timer = setTimeout(write, 200);
    opening = false;
  });
  return () => {
    clearTimeout(timer);
    stop();
  };
}

function voilaAddress(query) {
  const page = underVoila() ? location.pathname : labNotebook();
  return page ? `${location.origin}${page}?${query}` : `?${query}`;
}

// /user/ann/lab/tree/notebooks/explorer.ipynb -> /user/ann/voila/render/notebooks/explorer.ipynb
function labNotebook() {
  const match = /^(.*\/)(?:lab(?:\/workspaces\/[^/]+)?\/tree|notebooks|doc\/tree)\/(.+\.ipynb)$/
    .exec(location.pathname);
  return match ? `${match[1]}voila/render/${match[2]}` : "";
}

async function copy(input) {
  input.select();
  try {
    await navigator.clipboard.writeText(input.value);
    return true;
  } catch {
    return document.execCommand("copy");   // pages that are not https have no clipboard
  }
}

function render({ model, el }) {
  const id = uniqueId("sw-link");
  const input = make("input", { id, type: "text", readOnly: true });
  const button = make("button", { type: "button", text: "Copy link" });
  const said = make("span", { role: "status", className: "sw-unit" });
  hosted(el, make("div", { className: "shardwise sw-link" },
    make("label", { htmlFor: id, text: "Link to this scenario" }), input, button, said));
  const show = () => {
    input.value = voilaAddress(queryOf(model));
    said.textContent = "";
  };
  button.onclick = async () => {
    said.textContent = (await copy(input)) ? "Copied." : "Select the link and copy it.";
  };
  return follow(model, show);
}

export default { initialize, render };
