// One channel a feed: the newest data, who listens, and the Vega library once it is loaded.
// This text stands at the head of every module that needs it; the map is shared by all of them,
// so feed and listeners may come in any order.
function channelNamed(name) {
  const channels = (globalThis[Symbol.for("shardwise.channels")] ??= new Map());
  if (!channels.has(name)) channels.set(name, newChannel());
  return channels.get(name);
}

function newChannel() {
  const channel = { data: {}, texts: {}, serial: 0, listeners: new Set() };
  channel.library = new Promise((resolve, reject) => Object.assign(channel, { resolve, reject }));
  // A message port runs after the updates that already wait, so a burst is drawn once.
  const port = new MessageChannel();
  let posted = false;
  port.port1.onmessage = () => {
    posted = false;
    drawShown(channel);
  };
  channel.schedule = () => {
    if (posted) return;
    posted = true;
    port.port2.postMessage(0);
  };
  return channel;
}

// A listener: keys it reads, shown() whether a reader can see it, draw(), stale (set here).
function drawShown(channel) {
  const { serial } = channel;
  for (const listener of channel.listeners) {
    if (listener.stale && listener.shown()) drawOne(listener);
  }
  for (const listener of channel.listeners) listener.drawn?.(serial);
  clearTimeout(channel.catchUp);
  channel.catchUp = setTimeout(() => drawHidden(channel), 200);
}

// What is laid out but scrolled away is drawn when nothing moves, one chart in each idle slot.
function drawHidden(channel) {
  const next = [...channel.listeners].find((l) => l.stale && l.laidOut());
  if (!next) return;
  const idle = globalThis.requestIdleCallback ?? ((task) => setTimeout(task, 30));
  idle(() => {
    if (next.stale && next.laidOut()) drawOne(next);
    next.drawn?.(channel.serial);
    channel.catchUp = setTimeout(() => drawHidden(channel), 0);
  });
}

function drawOne(listener) {
  listener.stale = false;
  listener.draw();
}

// Every entry comes as JSON text; only what differs from the last time is parsed.
function publish(channel, texts) {
  const { data, texts: before } = channel;
  const changed = Object.keys(texts).filter((key) => texts[key] !== before[key]);
  for (const key of Object.keys(before)) if (!(key in texts)) changed.push(key);
  for (const key of changed) data[key] = key in texts ? JSON.parse(texts[key]) : undefined;
  for (const listener of channel.listeners) {
    if (listener.keys.some((key) => changed.includes(key))) listener.stale = true;
  }
  Object.assign(channel, { texts: { ...texts }, serial: channel.serial + 1 });
  channel.schedule();
}

function listen(channel, listener) {
  listener.stale = true;
  channel.listeners.add(listener);
  channel.schedule();
  return () => channel.listeners.delete(listener);
}
