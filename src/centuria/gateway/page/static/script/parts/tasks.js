// The tasks as a list that can be searched.

import { button, el, mark, say } from "../dom.js";
import { STATUSES, doingOf } from "../fold.js";
import { num, pico, sec } from "../format.js";

const PAGE = 30;

export function tasks({ open }) {
  let fold = null, most = PAGE, text = "", which = "";
  const body = el("tbody"), rows = new Map(), heading = el("h2", {}, "Tasks"), count = el("p", { class: "small soft", role: "status" });
  const search = el("input", { type: "search", placeholder: "Find a task", "aria-label": "Find a task by its id, label or cause", oninput: () => { text = search.value.trim().toLowerCase(); most = PAGE; update(fold); } });
  const filter = el("select", { "aria-label": "Which tasks", style: { width: "auto", minHeight: "32px", padding: "3px 8px", fontSize: "0.875rem" }, onchange: () => { which = filter.value; most = PAGE; update(fold); } },
    el("option", { value: "" }, "all"), ["running", "waiting", "ready", ...STATUSES].map(name => el("option", { value: name }, name)));
  const more = button("Show more", () => { most += 100; update(fold); }, { class: "little" });
  const head = [["task"], ["now"], ["turns", "n"], ["tools", "n"], ["spent", "n"], ["time", "n"]];
  const node = el("section", { class: "card" }, el("header", {}, heading, el("div", { class: "search" }, search), filter),
    el("table", { class: "rows fold tasks" }, el("thead", {}, el("tr", {}, head.map(([words, kind]) => el("th", { scope: "col", class: kind }, words)))), body),
    el("div", { class: "actions", style: { marginTop: "12px", alignItems: "center" } }, more, count));

  const fits = row => (!which || (row.status || row.state) === which) &&
    (!text || row.id.toLowerCase().includes(text) || row.label.toLowerCase().includes(text) || row.cause.toLowerCase().includes(text));

  function update(next, now = Date.now() / 1000) {
    fold = next;
    if (!fold) return;
    const found = text || which ? fold.order.filter(fits) : fold.order, shown = found.slice(0, most);
    say(heading, `Tasks ${num(fold.total)}`);
    const seen = new Set(shown.map(row => row.id));
    for (const [id, row] of rows) if (!seen.has(id)) { row.node.remove(); rows.delete(id); }
    shown.forEach((task, index) => {
      let row = rows.get(task.id);
      if (!row) rows.set(task.id, row = newRow(task.id, open));
      row.update(task, now);
      if (body.children[index] !== row.node) body.insertBefore(row.node, body.children[index] || null);
    });
    more.hidden = shown.length === found.length;
    say(count, !found.length ? fold.total ? "No task is like that." : "" : shown.length < found.length ? `${num(shown.length)} of ${num(found.length)} shown` : text || which ? `${num(found.length)} found` : "");
  }
  return { node, update };
}

function newRow(id, open) {
  const link = el("button", { type: "button", class: "link own" }, id), label = el("div", { class: "tiny soft own" }), now = el("span"), cause = el("div", { class: "tiny soft own" });
  const cells = ["turns", "tools", "", ""].map(name => el("td", { class: "n", "data-label": name || null }));
  link.addEventListener("click", () => open(id, link));
  const node = el("tr", {}, el("td", {}, link, label, cause), el("td", { class: "state" }, now), cells);
  function update(row, at) {
    say(label, row.label);
    say(now, doingOf(row));
    mark(now, "data-status", row.status || row.state);
    say(cause, row.status && row.status !== "ok" ? row.cause : "");
    say(cells[0], num(row.steps || row.turn));
    say(cells[1], num(row.tools));
    say(cells[2], row.cost ? pico(row.cost) : "–");
    say(cells[3], row.startedAt === null ? "–" : sec((row.endedAt ?? at) - row.startedAt));
  }
  return { node, update };
}
