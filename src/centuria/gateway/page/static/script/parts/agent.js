// One agent: what it was asked, what it said and did, as it streams; and what can be done with its branch.

import { get, post, swarmPath } from "../api.js";
import { announce, button, confirm, doing, el, mark, paced, say } from "../dom.js";
import { doingOf } from "../fold.js";
import { counted, num, pico, sec, short } from "../format.js";
import { entries, live } from "./talk.js";

const AGAIN_MS = 700;

export function agentPanel({ swarm, id, fold, close }) {
  const status = el("span", { class: "chip" }), label = el("p", { class: "small soft own" }), numbers = el("div", { class: "numbers" });
  const talk = el("div", { class: "talk", tabindex: "0", role: "log", "aria-live": "off", "aria-label": `Conversation of ${id}` });
  const told = el("div", { class: "stack" }, el("p", { class: "soft small" }, "Reading …")), stream = live();
  talk.append(told, stream.node);
  const path = (...rest) => swarmPath(swarm, "agents", id, ...rest);
  const act = (name, words) => async () => { await post(path(name)); announce(words); };
  const pause = doing("Pause", () => fold.paused.has(id) ? act("resume", `${id} goes on`)() : act("pause", `${id} is paused`)(), { class: "little", title: "No further request of this agent and all below it" });
  const retry = doing("Retry", act("retry", `${id} is run again`), { class: "little", title: "Run this task afresh" });
  const cancel = doing("Cancel branch", async () => {
    if (await confirm(`Cancel ${id}?`, "It and all that it made stop now. What they have spent is spent.", "Cancel branch", "Let it work")) await act("cancel", `${id} is cancelled`)();
  }, { class: "little bad" });
  const priority = el("select", { onchange: async () => {
    try { await post(path("priority"), { priority: Number(priority.value) }); announce(`${id} has priority ${priority.value}`); }
    catch (error) { announce(error.message, { bad: true }); }
  } }, Array.from({ length: 10 }, (_, value) => el("option", { value: String(value) }, value === 0 ? "0 first" : value === 9 ? "9 last" : String(value))));
  const heading = el("h2", { tabindex: "-1", class: "own" }, id);
  const actions = el("div", { class: "actions" }, pause, retry, cancel, el("label", { class: "inline" }, "priority", priority));
  const node = el("aside", { class: "card agent", "aria-label": `Agent ${id}` },
    el("div", { class: "top" }, el("div", { class: "title" }, heading, button("Close", close, { class: "quiet little", "aria-label": "Close the conversation" })),
      label, el("div", { class: "numbers" }, status), numbers, actions), talk);
  const stopping = new AbortController();
  let reading = false, again = false, timer = 0, gone = false;

  async function load() {
    if (reading) { again = true; return; }
    reading = true;
    clearTimeout(timer);
    try {
      show(await get(path(), { signal: stopping.signal }));
    } catch (error) {
      if (error.name === "AbortError") return;
      const known = fold.find(id);
      told.replaceChildren(el("p", { class: "note" + (known && !known.listed ? "" : " bad") }, known && !known.listed ? "The conversation of the merge is not shown." : error.message));
    }
    reading = false;
    if (again && !gone) { again = false; timer = setTimeout(load, AGAIN_MS); }
  }
  /** Read it again soon, as something of it has changed. */
  const soon = () => { if (!gone) { if (reading) again = true; else { clearTimeout(timer); timer = setTimeout(load, 120); } } };

  function pinned(work) {
    const atEnd = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60, before = talk.scrollTop;
    work();
    talk.scrollTop = atEnd ? talk.scrollHeight : before;
  }

  function show(conversation) {
    const fresh = entries(conversation), open = new Set([...told.querySelectorAll("details[open]")].map(one => one.dataset.id));
    for (const one of fresh) for (const more of one.querySelectorAll("details")) if (open.has(more.dataset.id)) more.open = true;
    // What is the same stays, so that nothing that was selected or scrolled moves.
    const place = told.children, keep = (a, b) => a && a.dataset.text === b.dataset.text;
    pinned(() => {
      let same = 0;
      while (same < fresh.length && keep(place[same], fresh[same])) same += 1;
      while (place.length > same) place[same].remove();
      told.append(...fresh.slice(same));
      stream.settled(conversation);
    });
  }

  const draw = paced(() => pinned(() => stream.draw()));

  function items(list) {
    let changed = false, said = false;
    for (const item of list) {
      if (item.agent !== id) continue;
      if (item.kind === "text_delta") said = stream.take(item) || said;
      else if (item.kind === "call_opened" || item.kind === "call_closed" || item.kind === "task_ended" || item.kind === "task_reset" || item.kind === "task_started") changed = true;
    }
    if (changed) soon();
    if (said) draw();
  }

  function update(now) {
    const row = fold.find(id);
    if (!row) { say(label, "The run has no such agent yet."); actions.hidden = true; return; }
    const held = fold.holdsBack(id) && row.state !== "ended";
    say(status, held ? "paused" : doingOf(row));
    mark(status, "data-status", held ? "paused" : row.status || row.state);
    const above = [row.label, row.parent ? `made by ${row.parent}` : "", row.every ? "needs all before it" : row.needs.length ? `needs ${row.needs.slice(0, 4).join(", ")}${row.needs.length > 4 ? ` and ${num(row.needs.length - 4)} more` : ""}` : ""];
    say(label, above.filter(Boolean).join("  ·  "));
    const took = row.startedAt === null ? null : (row.endedAt ?? now) - row.startedAt;
    const words = [counted(row.steps || row.turn, "turn"), counted(row.tools, "tool call"), pico(row.cost), `${short(row.prompt)} in, ${short(row.output)} out`, took === null ? "" : sec(took), row.epoch ? `begun ${counted(row.epoch + 1, "time")}` : "", row.status && row.status !== "ok" ? row.cause : ""];
    say(numbers, words.filter(Boolean).join("  ·  "));
    actions.hidden = !fold.working || !row.listed;
    pause.hidden = cancel.hidden = row.state === "ended";
    say(pause, fold.paused.has(id) ? "Resume" : "Pause");
    retry.hidden = row.state !== "ended" || row.status === "ok";
    priority.parentElement.hidden = row.state === "ended";
    if (document.activeElement !== priority && priority.value !== String(row.priority)) priority.value = String(row.priority);
    if (row.state === "ended") stream.clear();
  }

  node.addEventListener("keydown", event => { if (event.key === "Escape" && !event.defaultPrevented) { event.preventDefault(); close(); } });
  load();
  return { node, id, items, update, missed: soon, focus: () => heading.focus(), close() { gone = true; clearTimeout(timer); stopping.abort(); draw.end(); } };
}
