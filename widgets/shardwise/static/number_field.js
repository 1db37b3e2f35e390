// A labelled text box and a slider over the usual steps: one model, one message a move.
const SUFFIX = { "": 1, k: 1e3, m: 1e6, b: 1e9, g: 1e9, t: 1e12 };

// Only where the thumb stands; whether the text is a number is decided in Python.
function roughly(text) {
  const match = /^([+-]?[\d.]+(?:e[+-]?\d+)?)([a-z]?)$/.exec(
    text.trim().toLowerCase().replace(/[\s_]/g, "").replace(",", "."));
  return match ? Number(match[1]) * (SUFFIX[match[2]] ?? NaN) : NaN;
}

// Suffixes and exponents as the number that is used: 1k is a thousand, not 1024. Commas are refused.
function written(text) {
  const value = Number(roughly(text).toPrecision(15));
  if (!/\d.*[a-z]/i.test(text) || !Number.isSafeInteger(value)) return text;
  return value.toLocaleString("en-US").replaceAll(",", "\u202f");
}

function nearestStep(steps, value) {
  let best = 0;
  steps.forEach((step, i) => {
    if (Math.abs(step - value) < Math.abs(steps[best] - value)) best = i;
  });
  return best;
}

// Jupyter's own saving keeps one message on the way and merges the rest, which at 30 moves a second
// loses moves whenever an answer takes longer than 33 ms. Here eight may be on the way; after that
// the newest waits, so a slow kernel is never flooded.
function sender(model) {
  let onTheWay = 0, waiting, rescue;
  const answered = () => {
    onTheWay = Math.max(0, onTheWay - 1);
    if (waiting !== undefined) send(waiting);
  };
  const status = ({ content }) => content.execution_state === "idle" && answered();
  function send(text) {
    waiting = onTheWay < 8 ? undefined : text;
    // Some hosts never tell when a message was handled.
    clearTimeout(rescue);
    if (onTheWay > 0) rescue = setTimeout(() => ((onTheWay = 0), answered()), 2000);
    if (waiting !== undefined) return;
    onTheWay += 1;
    model.send({ text }, { iopub: { status } });
  }
  return { send, stop: () => clearTimeout(rescue) };
}

function fieldParts() {
  const id = uniqueId("sw-field");
  const label = make("label", { htmlFor: id });
  const box = make("input", { id, type: "text", autocomplete: "off", spellcheck: false });
  box.inputMode = "decimal";
  const unit = make("span", { id: `${id}-unit`, className: "sw-unit" });
  const slider = make("input", { type: "range", min: 0, step: 1 });
  const help = make("p", { id: `${id}-help`, className: "sw-help" });
  const error = make("p", { id: `${id}-error`, className: "sw-error", aria: { live: "polite" } });
  const field = make("div", { className: "shardwise sw-field" }, label,
    make("div", { className: "sw-field-row" }, box, unit, slider), error, help);
  return { label, box, unit, slider, help, error, field };
}

function render({ model, el }) {
  const parts = fieldParts();
  const { box, slider, error } = parts;
  hosted(el, parts.field);
  const outbox = sender(model);
  let typing;

  const steps = () => model.get("steps");
  const spoken = (text) => [text, model.get("unit")].filter(Boolean).join(" ");

  function place() {
    const value = roughly(box.value);
    if (!Number.isNaN(value)) slider.value = nearestStep(steps(), value);
    slider.setAttribute("aria-valuetext", spoken(box.value));
  }
  function send(text) {
    clearTimeout(typing);
    if (text === model.get("text")) return;
    model.set("text", text);
    outbox.send(text);
  }
  function commit() {
    box.value = written(box.value);
    place();
    send(box.value);
  }
  function choose(index) {
    const last = steps().length - 1;
    const text = String(steps()[Math.max(0, Math.min(last, index))]);
    box.value = text;
    place();
    send(text);
  }
  function showText() {
    if (box.value !== model.get("text")) box.value = model.get("text");
    place();
  }
  function showError() {
    const sentence = model.get("error");
    error.textContent = sentence;
    error.hidden = !sentence;
    box.setAttribute("aria-invalid", String(Boolean(sentence)));
    const described = [parts.unit, error, parts.help].filter((part) => part.textContent);
    box.setAttribute("aria-describedby", described.map((part) => part.id).join(" "));
  }
  function showFrame() {
    const [label, unit, help] = ["label", "unit", "help"].map((name) => model.get(name));
    parts.label.textContent = label;
    parts.unit.textContent = unit;
    parts.help.textContent = help;
    parts.help.hidden = !help;
    slider.max = Math.max(0, steps().length - 1);
    slider.hidden = steps().length < 2;
    slider.setAttribute("aria-label", label);
    for (const input of [box, slider]) input.disabled = model.get("disabled");
    showError();
    place();
  }

  slider.addEventListener("input", () => choose(Number(slider.value)));
  box.addEventListener("input", () => {
    place();
    clearTimeout(typing);
    typing = setTimeout(() => send(box.value), 300);
  });
  box.addEventListener("change", commit);
  box.addEventListener("keydown", (event) => {
    const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (event.key === "Enter") commit();
    if (by === undefined || steps().length < 2) return;
    event.preventDefault();
    choose(nearestStep(steps(), roughly(box.value)) + by);
  });
  model.on("change:text", showText);
  model.on("change:error", showError);
  for (const name of ["label", "unit", "help", "steps", "disabled"]) model.on(`change:${name}`, showFrame);
  showFrame();
  showText();
  return () => {
    clearTimeout(typing);
    outbox.stop();
  };
}

export default { render };
