// Following a run: server-sent events over fetch, so that refusals can be told from broken lines, and many events that
// came together are folded together.

import { failed, headers } from "./api.js";

const BUDGET_MS = 12;

/**
 * Follow `url` until it ends or `stop()` is called. `onItems(items)` gets what arrived, a slice at a time;
 * `onState(state, detail)` is told: connecting, live, waiting (detail: seconds), ended, refused (detail: error).
 * Facts are never missed: the number of the last one is where the next try goes on. Pieces of text may be (`onGap`).
 */
export function follow(url, { onItems, onState, onGap = () => {} }) {
  const stopping = new AbortController();
  let last = 0, tries = 0, wake = null, stopped = false, address = url, moving = null;

  async function once() {
    const reading = new AbortController(), end = () => reading.abort();
    moving = end;
    stopping.signal.addEventListener("abort", end);
    try {
      const answer = await fetch(address, {
        signal: reading.signal, credentials: "same-origin", cache: "no-store",
        headers: headers({ accept: "text/event-stream", "last-event-id": String(last) }),
      });
      if (!answer.ok) {
        const error = await failed(answer);
        if (error.status < 500 && error.status !== 408 && error.status !== 429) return error;
        throw error;
      }
      onState("live");
      return await read(answer.body.getReader());
    } finally {
      stopping.signal.removeEventListener("abort", end);
      reading.abort();
    }
  }

  /** True when the stream said that it is over, false when it broke off and has to be taken up again. */
  async function read(reader) {
    const decoder = new TextDecoder();
    let rest = "", event = newEvent();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return false;
      tries = 0;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      let items = [], began = performance.now();
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
        if (line !== "") { take(event, line); continue; }
        const item = whole(event);
        const name = event.name;
        event = newEvent();
        if (name === "end") { onItems(items); return true; }
        if (name === "interrupted") { onItems(items); return false; }
        if (item === null) continue;
        if (item.kind === "gap") { onGap(); continue; }
        items.push(item);
        if (performance.now() - began > BUDGET_MS) {
          onItems(items);
          items = [];
          await breath();
          if (stopped) return true;
          began = performance.now();
        }
      }
      if (items.length) onItems(items);
    }
  }

  function whole(event) {
    if (event.id !== "" && /^\d+$/.test(event.id)) last = Math.max(last, Number(event.id));
    if (!event.data.length) return null;
    try {
      const item = JSON.parse(event.data.join("\n"));
      return item !== null && typeof item === "object" ? item : null;
    } catch {
      return null;
    }
  }

  async function run() {
    while (!stopped) {
      const asked = address;
      if (tries > 0 || last === 0) onState("connecting");
      let how;
      try {
        how = await once();
      } catch {
        how = false;
      }
      if (stopped) return;
      if (address !== asked && how !== true) continue;
      if (how === true) { onState("ended"); return; }
      if (how instanceof Error) { onState("refused", how); return; }
      const pause = tries === 0 ? 0.3 : Math.min(15, 2 ** (tries - 1)) * (0.8 + 0.4 * Math.random());
      tries += 1;
      if (pause > 0.5) onState("waiting", pause);
      await new Promise(resolve => { wake = resolve; setTimeout(resolve, pause * 1000); });
    }
  }

  run();
  return {
    stop() { stopped = true; stopping.abort(); if (wake) wake(); },
    /** Go on at another address of the same events. */
    to(next) { if (next !== address) { address = next; if (moving) moving(); } },
    /** Try again at once. */
    now() { tries = 0; if (wake) wake(); },
  };
}

const newEvent = () => ({ name: "", data: [], id: "" });

function take(event, line) {
  if (line.startsWith(":")) return;
  const colon = line.indexOf(":"), field = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
  if (field === "data") event.data.push(value);
  else if (field === "event") event.name = value;
  else if (field === "id") event.id = value;
}

/** Let the page draw and listen before going on. */
const breath = () => new Promise(resolve => { const channel = new MessageChannel(); channel.port1.onmessage = resolve; channel.port2.postMessage(0); });
