// The feed has no view: it loads Vega once and hands every update to the channel's listeners.
function initialize({ model }) {
  const channel = channelNamed(model.get("channel"));
  const url = URL.createObjectURL(new Blob([model.get("library")], { type: "text/javascript" }));
  // Not awaited: anywidget gives a module two seconds and drops every later update after that.
  import(url)
    .then((library) => channel.resolve(library.vegaEmbed), channel.reject)
    .finally(() => URL.revokeObjectURL(url));
  const changed = () => publish(channel, model.get("data"));
  model.on("change:data", changed);
  changed();
  return () => {
    model.off("change:data", changed);
    clearTimeout(channel.catchUp);
    globalThis[Symbol.for("shardwise.channels")].delete(model.get("channel"));
  };
}

export default { initialize, render() {} };
