// One run, live.

import { get, post, swarmPath } from "../api.js";
import { announce, chip, confirm, doing, el, mark, paced, say } from "../dom.js";
import { Fold } from "../fold.js";
import { clip, sec, when } from "../format.js";
import { follow } from "../sse.js";
import { facts } from "../swarm.js";
import { agentPanel } from "../parts/agent.js";
import { census, notices } from "../parts/census.js";
import { graph } from "../parts/graph.js";
import { grid } from "../parts/grid.js";
import { queues } from "../parts/queues.js";
import { result } from "../parts/result.js";
import { spend } from "../parts/spend.js";
import { tasks } from "../parts/tasks.js";
import { tiles } from "../parts/tiles.js";
import { timeline } from "../parts/timeline.js";

/** Milliseconds between two drawings of what changes. */
const PAUSE = 120;
/** What is not in sight is drawn so often only. */
const ALL_EVERY = 8;

export function runView({ parts: [id, agent], retitle }) {
  const fold = new Fold();
  let panel = null, opener = null, state = "connecting", told = null, skew = 0, ended = false, count = 0;
  const here = "#/runs/" + encodeURIComponent(id);
  const go = (name, from) => { opener = from || null; location.hash = `${here}/agents/${encodeURIComponent(name)}`; };
  const leave = () => { location.hash = here; };

  const heading = el("h1", { tabindex: "-1", class: "own" }, "Swarm"), status = chip("", "…"), line = el("span", { class: "chip plain", role: "status" }, "connecting"), under = el("p", { class: "under own" }, id);
  const rehearsal = el("span", { class: "chip plain", hidden: true, "data-status": "paused" }, "REHEARSAL"), cause = el("p", { class: "note bad own", hidden: true });
  const lost = el("p", { class: "note warn", role: "status", hidden: true });
  const pause = doing("Pause", async () => {
    const paused = fold.pausedWhole;
    await post(swarmPath(id, paused ? "resume" : "pause"));
    announce(paused ? "The swarm goes on" : "The swarm is paused: requests in flight come to their end");
  });
  const cancel = doing("Cancel", async () => {
    if (!await confirm("Cancel this swarm?", "All its agents stop now. What they have finished is kept, and what they have spent is spent.", "Cancel the swarm", "Let it work")) return;
    await post(swarmPath(id, "cancel"));
    announce("The swarm is being cancelled");
  }, { class: "bad" });
  const actions = el("div", { class: "actions", hidden: true }, pause, cancel);

  const all = [tiles(), grid({ open: go }), timeline({ open: go }), queues(id), spend(), graph({ open: go }), census(), notices(), tasks({ open: go }), result(id)];
  const [figures, cells, lanes, shared, money, net, ends, notes, list, answer] = all;
  const shown = el("div", { class: "shown" }, cells.node, answer.node, lanes.node, shared.node,
    el("div", { class: "of-two" }, money.node, el("div", { class: "stack" }, ends.node, notes.node)), net.node, list.node);
  const watch = el("div", { class: "watch" }, shown);
  const node = el("div", {},
    el("div", { class: "head" }, el("div", {}, el("div", { class: "title" }, heading, status, rehearsal, line), under), actions),
    el("div", { class: "stack", style: { marginBottom: "16px" } }, lost, cause), figures.node, watch);

  const now = () => Date.now() / 1000 - skew;
  const seen = new Set(all.map(part => part.node));
  const watcher = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) seen.add(entry.target); else seen.delete(entry.target);
    draw();
  }, { rootMargin: "200px" });
  for (const part of all) watcher.observe(part.node);

  const draw = paced(() => {
    const at = now();
    drawHead(at);
    const whole = count++ % ALL_EVERY === 0;
    for (const part of all) if (whole || seen.has(part.node)) part.update(fold, at);
    panel?.update(at);
  }, PAUSE);

  function drawHead(at) {
    const name = fold.name || told?.name || "Swarm";
    say(heading, clip(name, 200));
    const words = fold.status || told?.status || "…", shownStatus = fold.working && fold.pausedWhole ? "paused" : words;
    say(status, shownStatus);
    mark(status, "data-status", shownStatus);
    rehearsal.hidden = !(fold.rehearsal || fold.replay || told?.rehearsal);
    say(rehearsal, fold.replay ? "REPLAY" : "REHEARSAL");
    say(under, [fold.model || told?.model, id, told?.madeAt ? "begun " + when(told.madeAt) : "", fold.working && fold.phase ? `phase: ${fold.phase}` : "", fold.resumes ? `resumed ${fold.resumes} ×` : ""].filter(Boolean).join("  ·  "));
    const why = fold.status && !fold.working && fold.status !== "ok" ? fold.cause || told?.cause : "";
    cause.hidden = !why;
    say(cause, why || "");
    actions.hidden = !(fold.working || (told?.working && !ended));
    say(pause, fold.pausedWhole ? "Resume" : "Pause");
    if (fold.startedAt !== null) answer.over(!fold.working && ended);
  }

  const LINES = { connecting: "connecting", live: "live", waiting: "not connected", ended: "", refused: "" };
  const events = name => `${swarmPath(id, "events")}?brief=true${name === undefined ? "" : `&agent=${encodeURIComponent(name)}`}`;
  const following = follow(events(agent), {
    onItems(items) {
      for (const item of items) {
        fold.take(item);
        if (item.at > 1e9) skew = Math.max(-5, Math.min(skew, Date.now() / 1000 - item.at));
      }
      panel?.items(items);
      draw();
    },
    onGap() { panel?.missed(); },
    onState(next, detail) {
      state = next;
      say(line, LINES[next]);
      line.hidden = !LINES[next];
      mark(line, "data-status", next === "live" ? "ok" : next === "waiting" ? "failed" : null);
      lost.hidden = next !== "waiting" && next !== "refused";
      if (next === "waiting") lost.replaceChildren(`The connection to the gateway is lost; trying again in ${sec(Math.ceil(detail))}. What you see is as of then. `, el("button", { type: "button", class: "button little", onclick: () => following.now() }, "Try now"));
      if (next === "refused") lost.replaceChildren(detail.status === 404 ? "There is no such swarm, or it belongs to another key." : detail.message);
      if (next === "ended") { ended = true; count = 0; }
      draw();
    },
  });

  get(swarmPath(id)).then(one => { told = facts(one); retitle(told.name); draw(); }, () => {});
  const beat = setInterval(() => { if (!document.hidden && (fold.working || state !== "ended")) draw(); }, 500);

  function openAgent(name) {
    if (panel?.id === name) return;
    shut();
    following.to(events(name));
    if (name === undefined) return;
    panel = agentPanel({ swarm: id, id: name, fold, close: leave });
    watch.append(panel.node);
    watch.classList.add("with-agent");
    document.body.classList.add("covered");
    cells.select(name);
    panel.update(now());
    panel.focus();
    draw();
  }

  function shut() {
    if (!panel) return;
    panel.close();
    panel.node.remove();
    panel = null;
    watch.classList.remove("with-agent");
    document.body.classList.remove("covered");
    cells.select(null);
    if (opener?.isConnected) opener.focus({ preventScroll: true });
    else heading.focus({ preventScroll: true });
    opener = null;
    draw();
  }

  if (agent !== undefined) queueMicrotask(() => openAgent(agent));
  draw();
  return {
    title: "Swarm", node, focus: heading,
    moved: parts => openAgent(parts[1]),
    close() { following.stop(); clearInterval(beat); watcher.disconnect(); draw.end(); panel?.close(); for (const part of all) part.close?.(); },
  };
}
