// Elements by name; text is always set as text, so no input can become markup.
function make(tag, properties = {}, ...children) {
  const { text, data, aria, ...rest } = properties;
  const element = document.createElement(tag);
  Object.assign(element, rest);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(aria ?? {})) element.setAttribute(`aria-${name}`, value);
  Object.assign(element.dataset, data ?? {});
  element.append(...children);
  return element;
}

function uniqueId(prefix) {
  return `${prefix}-${Math.random().toString(36).slice(2, 10)}`;
}

// JupyterLab takes plain keys from what cannot be typed into: arrows from a slider, Enter from a
// button. They stay here; its shortcuts with Ctrl, Alt, Shift+Enter and Escape still reach it.
function hosted(el, ...children) {
  el.classList.add("sw-host");
  el.append(...children);
  el.addEventListener("keydown", (event) => {
    const shortcut = event.ctrlKey || event.metaKey || event.altKey
      || event.key === "Escape" || (event.key === "Enter" && event.shiftKey);
    if (!shortcut) event.stopPropagation();
  });
}

// A screen reader hears the value that stays, not each one passed on the way, and not the first,
// which is read with the page. Said words are cleared, so that nobody meets them twice.
function announcer(region, quietMs = 900) {
  let timer, last;
  const say = (text) => {
    const first = last === undefined;
    if (text === last) return;
    last = text;
    clearTimeout(timer);
    if (first) return;
    timer = setTimeout(() => {
      region.textContent = text;
      timer = setTimeout(() => (region.textContent = ""), 5000);
    }, quietMs);
  };
  return { say, stop: () => clearTimeout(timer) };
}
