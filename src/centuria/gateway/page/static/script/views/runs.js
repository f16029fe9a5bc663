// All runs, the newest first.

import { get } from "../api.js";
import { chip, choice, dots, el, mark, meter, say } from "../dom.js";
import { ago, cap, num, sec, usd, when } from "../format.js";
import { facts } from "../swarm.js";

const SOON = 2000, LATER = 10_000;

export function runsView({ who }) {
  const list = el("div", { class: "run-list", role: "list" }), note = el("div", { role: "status" });
  const rows = new Map(), stopping = new AbortController();
  let which = "all", timer = 0, all = null;
  const filter = choice("Which runs", [["all", "All"], ["running", "Running"], ["ended", "Ended"]], which, value => { which = value; draw(); });
  const node = el("div", {},
    el("div", { class: "head" }, el("div", {}, el("h1", {}, "Runs"), el("p", { class: "under" }, "Swarms of this gateway, the newest first.")),
      el("div", { class: "actions" }, filter.node, el("a", { class: "button main", href: "#/new" }, "New swarm"))),
    note, list);

  async function load() {
    let next = LATER;
    try {
      const told = await get(`/v1/agents/swarm?limit=200${who.key.admin ? "&all=true" : ""}`, { signal: stopping.signal });
      all = (told.data || []).map(facts);
      note.replaceChildren();
      draw();
      if (all.some(run => run.working)) next = SOON;
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status !== 401) note.replaceChildren(el("p", { class: "note bad" }, `${error.message} Trying again …`));
    }
    if (!stopping.signal.aborted) timer = setTimeout(load, document.hidden ? LATER * 3 : next);
  }

  function draw() {
    if (all === null) return;
    const shown = all.filter(run => which === "all" || run.working === (which === "running"));
    if (!shown.length) { rows.clear(); list.replaceChildren(empty()); return; }
    if (!rows.size) list.replaceChildren();
    const seen = new Set(shown.map(run => run.id));
    for (const [id, row] of rows) if (!seen.has(id)) { row.node.remove(); rows.delete(id); }
    shown.forEach((run, place) => {
      let row = rows.get(run.id);
      if (!row) rows.set(run.id, row = newRow(run, who));
      row.update(run);
      if (list.children[place] !== row.node) list.insertBefore(row.node, list.children[place] || null);
    });
  }

  function empty() {
    if (which !== "all") return el("div", { class: "empty" }, el("p", {}, which === "running" ? "No swarm is at work now." : "No swarm has ended yet."));
    return el("div", { class: "empty" }, dots(5, [6, 8, 12, 16, 18]), el("h2", {}, "No swarm has run yet"),
      el("p", {}, "Give a hundred agents one job: a goal in words, or tasks that need each other. You can watch every one of them here."),
      el("a", { class: "button main", href: "#/new" }, "Start the first one"));
  }

  load();
  const soon = () => { if (!document.hidden) { clearTimeout(timer); load(); } };
  document.addEventListener("visibilitychange", soon);
  return { title: "Runs", node, close() { stopping.abort(); clearTimeout(timer); document.removeEventListener("visibilitychange", soon); } };
}

function newRow(run, who) {
  const status = chip(""), name = el("span", { class: "own" }), rehearsal = el("span", { class: "chip plain", hidden: !run.rehearsal, "data-status": "paused" }, "REHEARSAL"), under = el("p", { class: "under" });
  const bar = meter("Progress"), progress = el("p", { class: "small soft" });
  const money = el("div"), of = el("p", { class: "under" }), started = el("div", { class: "right small soft" });
  const node = el("a", { class: "run-row", href: "#/runs/" + encodeURIComponent(run.id) },
    el("div", {}, el("div", { class: "name" }, status, rehearsal, name), under), el("div", {}, bar.node, progress), el("div", { class: "right" }, money, of), started);
  const item = el("div", { role: "listitem" }, node);
  function update(now) {
    say(status, now.status);
    mark(status, "data-status", now.status);
    say(name, now.name);
    say(under, [now.model, who.key.admin ? now.owner : "", now.id].filter(Boolean).join("  ·  "));
    const bad = now.ended - now.ok;
    bar.update([[now.ok, "ok-mark"], [bad, now.status === "cancelled" ? "cancelled-mark" : "failed-mark"]], now.tasks || 1, `${now.ok} of ${now.tasks} tasks are ok`);
    say(progress, `${num(now.ok)} of ${num(now.tasks)} ok` + (bad ? `, ${num(bad)} not` : ""));
    say(money, usd(now.spent));
    say(of, now.cap === null ? "no cap" : `of ${cap(now.cap)}`);
    say(started, now.endedAt === null ? ago(now.madeAt) : sec(now.endedAt - now.madeAt));
    mark(started, "title", "Started " + when(now.madeAt));
  }
  return { node: item, update };
}
