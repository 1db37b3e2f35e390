// Put into a page before its own code: when keys go down, when charts are drawn, what the kernel
// said and when, what was sent to it. Times are milliseconds since the page began.
(() => {
  const probe = { presses: [], drawn: [], sent: [], frames: [], keep: false };
  globalThis.__probe = probe;
  // A picture: its number, when it stood in the page, when its frame began, when it was painted.
  const picture = (value) => {
    const stood = performance.now();
    requestAnimationFrame(() => {
      const frame = performance.now();
      const port = new MessageChannel();
      port.port1.onmessage = () => probe.drawn.push([value, stood, frame, performance.now()]);
      port.port2.postMessage(0);
    });
  };
  addEventListener("keydown", (event) => probe.presses.push(event.timeStamp), true);

  // Live charts number their pictures; a plain chart has the number of moves in its title.
  const latest = () => {
    const figures = [...document.querySelectorAll(".sw-chart[data-drawn]")];
    if (figures.length) {
      const seen = figures.filter((figure) => !figure.dataset.below);
      return Math.min(...seen.map((figure) => Number(figure.dataset.drawn)));
    }
    const titles = [...document.querySelectorAll(".vega-embed .role-title-text text")];
    const numbers = titles.map((title) => Number(title.textContent.replace(/\D+/g, "")));
    return numbers.length ? Math.min(...numbers) : NaN;
  };
  let last = NaN;
  const look = () => {
    const value = latest();
    if (Number.isNaN(value) || value === last) return;
    last = value;
    picture(value);
  };
  const observer = new MutationObserver(look);
  addEventListener("DOMContentLoaded", () => observer.observe(document.body, {
    subtree: true, childList: true, attributes: true, attributeFilter: ["data-drawn"],
  }));

  const Original = WebSocket;
  globalThis.WebSocket = class extends Original {
    constructor(...details) {
      super(...details);
      const send = this.send.bind(this);
      this.send = (data) => {
        if (probe.keep) probe.sent.push([performance.now(), data]);
        send(data);
      };
      this.addEventListener("message", (event) => {
        if (probe.keep) probe.frames.push([performance.now(), event.data]);
      });
    }
  };
  const decoder = new TextDecoder();
  const parts = (data) => {
    if (typeof data === "string") return JSON.parse(data);
    const view = new DataView(data);
    const offsets = Array.from({ length: Number(view.getBigUint64(0, true)) },
      (_, i) => Number(view.getBigUint64(8 * (i + 1), true)));
    const text = (i) => decoder.decode(new Uint8Array(data, offsets[i], offsets[i + 1] - offsets[i]));
    const [header, parent, , content] = [1, 2, 3, 4].map((i) => JSON.parse(text(i)));
    return { header, parent_header: parent, content };
  };
  const when = (frames) => frames.map(([time, data]) => ({ when: time, ...parts(data) }));
  // Messages of widgets to the kernel.
  const outgoing = () => when(probe.sent).filter(({ header }) => header.msg_type === "comm_msg")
    .map(({ when: time, header }) => ({ when: time, id: header.msg_id }));
  // Which message each new set of rows answers. A feed's updates are counted as its pictures are;
  // the spec of a plain chart holds its number.
  const answers = () => {
    let count = probe.before;
    return when(probe.frames).flatMap(({ header, parent_header, content }) => {
      const state = header.msg_type === "comm_msg" && content.data?.method === "update"
        ? content.data.state : {};
      if ("data" in state) return [{ id: parent_header.msg_id, number: (count += 1) }];
      const title = state.spec?.title;
      if (!title) return [];
      return [{ id: parent_header.msg_id, number: Number((title.text ?? title).replace(/\D+/g, "")) }];
    });
  };
  // Each handled message: busy, then what the kernel sends, then idle; dates are the kernel's.
  const handled = () => {
    const moves = new Map();
    for (const [, data] of probe.frames) {
      const { header, parent_header, content } = parts(data);
      if (parent_header.msg_type !== "comm_msg") continue;
      const move = moves.get(parent_header.msg_id) ?? { messages: 0, bytes: 0 };
      if (header.msg_type === "status") move[content.execution_state] = Date.parse(header.date)
        + Number(/\.\d{3}(\d{3})/.exec(header.date)?.[1] ?? 0) / 1000;
      else {
        move.messages += 1;
        move.bytes += data.byteLength ?? data.length;
      }
      moves.set(parent_header.msg_id, move);
    }
    return [...moves.values()].filter((move) => move.busy && move.idle)
      .map((move) => ({ ms: move.idle - move.busy, messages: move.messages, bytes: move.bytes }));
  };
  probe.start = () => {
    for (const figure of document.querySelectorAll(".sw-chart")) {
      if (figure.getBoundingClientRect().top >= innerHeight) figure.dataset.below = "";
      else delete figure.dataset.below;
    }
    Object.assign(probe, { presses: [], drawn: [], sent: [], frames: [], keep: true, before: latest() });
  };
  probe.stop = () => {
    const { presses, drawn } = probe;
    const seen = { presses, drawn, sent: outgoing(), answers: answers(), handled: handled() };
    Object.assign(probe, { presses: [], drawn: [], sent: [], frames: [], keep: false });
    return seen;
  };
  probe.heap = async () => {
    for (let i = 0; i < 3; i += 1) {
      globalThis.gc?.();
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    return performance.memory.usedJSHeapSize;
  };
})();
