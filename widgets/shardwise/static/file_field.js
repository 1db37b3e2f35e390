// A file sent to Python in pieces: a server ends the connection over one message of 10 MiB.
const PIECE = 2 * 2 ** 20;

function render({ model, el }) {
  const id = uniqueId("sw-file");
  const label = make("label", { htmlFor: id, text: model.get("label") });
  const input = make("input", { id, type: "file", accept: model.get("accept") });
  const said = make("p", { id: `${id}-said`, className: "sw-help", role: "status" });
  const error = make("p", { id: `${id}-error`, className: "sw-error", role: "alert", hidden: true });
  input.setAttribute("aria-describedby", `${id}-said ${id}-error`);
  hosted(el, make("div", { className: "shardwise sw-field" }, label, input, error, said));
  let file, at = 0;

  function fail(sentence) {
    error.textContent = sentence;
    error.hidden = !sentence;
  }
  async function sendPiece() {
    const from = at, sending = file;
    const piece = await sending.slice(from, from + PIECE).arrayBuffer();
    if (sending !== file) return;
    at = from + piece.byteLength;
    said.textContent = `Sending ${file.name}: ${Math.floor((100 * at) / Math.max(1, file.size))} %`;
    model.send({ name: file.name, first: from === 0, last: at >= file.size }, undefined, [piece]);
  }
  input.onchange = () => {
    const [chosen] = input.files;
    if (!chosen) return;
    const most = model.get("largest");
    if (chosen.size > most) {
      input.value = "";
      return fail(`${chosen.name} is ${(chosen.size / 2 ** 20).toFixed(0)} MiB; allowed: at most ${most / 2 ** 20} MiB.`);
    }
    [file, at] = [chosen, 0];
    fail("");
    sendPiece();
  };
  const show = () => {
    fail(model.get("error"));
    said.textContent = model.get("said") || model.get("help");
    if (!model.get("said") && !model.get("error")) input.value = "";
  };
  // The same file, written anew, can be chosen again.
  input.onclick = () => (input.value = "");
  const heard = ({ next, done }) => {
    if (next && file) sendPiece();
    if (done) show();
  };
  model.on("msg:custom", heard);
  model.on("change:error change:said", show);
  show();
  return () => model.off("msg:custom", heard);
}

export default { render };
