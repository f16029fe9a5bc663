// How the tasks ended, and why those did that are not ok; what the run said.

import { el, meter, say } from "../dom.js";
import { STATUSES } from "../fold.js";
import { num, watch } from "../format.js";

const MOST_CAUSES = 8, MOST_NOTICES = 60;

export function census() {
  const bar = meter("Census"), legend = el("div", { class: "legend" }), list = el("ul", { class: "lines causes" });
  const none = el("p", { class: "soft small" }, "No task has ended yet.");
  const node = el("section", { class: "card census" }, el("header", {}, el("h2", {}, "Census")), bar.node, legend, none, list);
  let before = "";

  function update(fold) {
    const unfinished = fold.total - fold.ended;
    const parts = [...STATUSES.map(name => [name, fold.census[name], name + "-mark"]), ["unfinished", unfinished, "waiting-mark"]];
    const key = parts.map(part => part[1]).join();
    if (key === before) return;
    before = key;
    bar.update(parts.map(([, count, colour]) => [count, colour]), fold.total || 1, parts.filter(part => part[1]).map(([name, count]) => `${count} ${name}`).join(", ") || "no tasks");
    legend.replaceChildren(...parts.filter(part => part[1]).map(([name, count, colour]) =>
      el("span", {}, el("i", { class: "swatch", style: { background: `var(--${colour})` } }), `${num(count)} ${name}`)));
    none.hidden = fold.ended > 0;
    const causes = new Map();
    for (const row of fold.order) {
      if (!row.status || row.status === "ok") continue;
      const id = row.status + "\n" + row.cause, found = causes.get(id);
      if (found) found.count += 1; else causes.set(id, { status: row.status, cause: row.cause, count: 1 });
    }
    const sorted = [...causes.values()].sort((a, b) => b.count - a.count);
    const lines = sorted.slice(0, MOST_CAUSES).map(one => el("li", {}, el("strong", { "data-status": one.status }, num(one.count)),
      el("span", {}, el("span", { "data-status": one.status }, one.status), " ", el("span", { class: "own soft" }, one.cause || "no cause given"))));
    if (sorted.length > MOST_CAUSES) lines.push(el("li", { class: "soft" }, "", el("span", {}, `and ${num(sorted.length - MOST_CAUSES)} more causes`)));
    list.replaceChildren(...lines);
  }
  return { node, update };
}

export function notices() {
  const list = el("ul", { class: "lines" }), heading = el("h2", {}, "Notices");
  const node = el("section", { class: "card", hidden: true }, el("header", {}, heading), el("div", { class: "lanes", tabindex: "0", role: "group", "aria-label": "Notices" }, list));
  let last = null, count = 0;
  function update(fold) {
    const newest = fold.notices.at(-1) || null;
    if (newest === last && fold.notices.length === count) return;
    last = newest;
    count = fold.notices.length;
    node.hidden = !count;
    say(heading, `Notices ${num(count)}`);
    list.replaceChildren(...fold.notices.slice(-MOST_NOTICES).reverse().map(one => el("li", { class: one.level },
      el("span", { class: "soft" }, "+" + watch(one.at - fold.startedAt)), el("span", { class: "own" }, one.text))));
  }
  return { node, update };
}
