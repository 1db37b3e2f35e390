// A button that asks Python for a file when it is pressed, and saves it from the page.
function render({ model, el }) {
  const button = make("button", { type: "button" });
  const error = make("p", { className: "sw-error", role: "alert", hidden: true });
  const show = () => {
    button.textContent = model.get("label");
    button.disabled = model.get("disabled");
  };
  const arrived = (message, buffers) => {
    error.hidden = !message.error;
    error.textContent = message.error ?? "";
    if (!message.error) saveFile(message.filename, buffers[0] ?? message.text, message.mime);
  };
  button.onclick = () => model.send({ wanted: true });
  model.on("msg:custom", arrived);
  for (const name of ["label", "disabled"]) model.on(`change:${name}`, show);
  hosted(el, make("div", { className: "shardwise sw-download" }, button, error));
  show();
}

export default { render };
