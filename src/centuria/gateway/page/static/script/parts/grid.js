// The agents: one cell for each slot with what goes on in it, or one for each task with how it ended.

import { choice, el, mark, say, widthOf } from "../dom.js";
import { ACTS, STATUSES, act, doingOf } from "../fold.js";
import { clip, num } from "../format.js";

/** Cells have names as long as they stay within so many rows. */
const ROWS_BIG = 5, ROWS_NAMED = 13, ROWS_MORE = 5, DENSE_LIMIT = 3000;
const SIGNS = { ok: "✓", failed: "×", timeout: "◷", cancelled: "–", budget: "$", blocked: "‖", skipped: "·", running: "▸", ready: "·", waiting: "·" };
/** What most ids begin with, up to a mark between words: small cells leave it out. */
function beginning(order) {
  const found = /^.*[-_./: ](?=.)/.exec(order[0]?.id ?? "")?.[0] ?? "";
  return found && order.filter(row => row.id.startsWith(found)).length > order.length * 0.6 ? found : "";
}
const KEYS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

export function grid({ open }) {
  const cells = el("div", { class: "cells", role: "group", "aria-label": "Agents", "aria-describedby": "grid-hint" });
  const legend = el("div", { class: "legend" }), made = [];
  let which = "slots", chosen = false, fold = null, size = "", current = 0, shownLegend = "", selected = null, prefix = "", prefixOf = -1;
  const show = choice("What the cells are", [["slots", "Slots"], ["tasks", "Tasks"]], which, value => { which = value; chosen = true; update(fold); });
  const heading = el("h2", {}, "Agents"), note = el("p", { class: "small soft", hidden: true });
  const node = el("section", { class: "card" }, el("header", {}, heading, legend, show.node), cells, note,
    el("p", { class: "unseen", id: "grid-hint" }, "Arrow keys move from cell to cell, Enter opens the agent."));

  const width = widthOf(cells, () => update(fold));

  function newCell(index) {
    const sign = el("i", { "aria-hidden": "true" }), name = el("b"), words = el("span");
    const cell = el("button", { class: "cell", type: "button", tabindex: index === current ? "0" : "-1" }, sign, name, words);
    cell.dataset.index = index;
    cells.append(cell);
    return { cell, sign, name, words, act: "", id: null, said: "" };
  }

  function items() {
    if (which === "tasks") return fold.order.slice(0, DENSE_LIMIT);
    const limit = fold.resources.get("agents")?.limit || fold.agents;
    let slots = Math.min(limit || 0, Math.max(fold.total, 1));
    for (const slot of fold.slots.keys()) slots = Math.max(slots, slot + 1);
    return Array.from({ length: Math.min(slots, DENSE_LIMIT) }, (_, slot) => { const id = fold.slots.get(slot); return id === undefined ? null : fold.find(id) || null; });
  }

  function brief(id) {
    if (prefixOf !== fold.shape) { prefixOf = fold.shape; prefix = beginning(fold.order); }
    return clip(size === "named" && id.length > 9 && prefix && id.startsWith(prefix) ? id.slice(prefix.length) : id, 60);
  }

  function fit(count) {
    const wide = width.now || 800;
    const rows = least => Math.ceil(count / Math.max(1, Math.floor(wide / least)));
    const more = of => size === of ? ROWS_MORE : 0;  // what is open beside the cells does not change how they look
    const now = rows(165) <= ROWS_BIG + more("big") ? "big" : rows(117) <= ROWS_NAMED + more("named") ? "named" : "dense";
    if (now === size) return;
    cells.dataset.size = size = now;
    for (const one of made) { one.said = ""; one.id = undefined; }
  }

  function update(next) {
    fold = next;
    if (!fold) return;
    if (!chosen && !fold.working && fold.total && which === "slots") { which = "tasks"; show.choose(which); }
    const rows = items(), counts = {};
    fit(rows.length);
    while (made.length > rows.length) made.pop().cell.remove();
    if (current >= rows.length) focusable(Math.max(0, rows.length - 1));
    rows.forEach((row, index) => {
      const one = made[index] ||= newCell(index);
      const sign = which === "tasks" ? row.status || row.state : row ? act(row) : "·";
      counts[sign] = (counts[sign] || 0) + 1;
      draw(one, row, sign, index);
    });
    say(heading, which === "slots" ? `Agents ${num(fold.slots.size)} of ${num(rows.length)}` : `Tasks ${num(fold.total)}`);
    note.hidden = which === "slots" || fold.total <= DENSE_LIMIT;
    if (!note.hidden) say(note, `The first ${num(DENSE_LIMIT)} are shown; the list below finds every one.`);
    drawLegend(counts);
  }

  function draw(one, row, sign, index) {
    if (one.act !== sign) {
      one.act = one.cell.dataset.act = sign;
      one.sign.textContent = SIGNS[sign] || sign;
    }
    const id = row ? row.id : null;
    if (one.id !== id) { one.id = id; one.name.textContent = id === null ? "" : brief(id); }
    const words = row ? which === "tasks" && row.label ? row.label : doingOf(row) : "free";
    const said = row ? `${row.id}${row.label ? `, ${row.label}` : ""}: ${doingOf(row)}` : `Slot ${index}: free`;
    if (one.said !== said) {
      one.said = said;
      if (size !== "dense") say(one.words, row ? clip(words, 60) : "");
      one.cell.setAttribute("aria-label", clip(said, 160));
      if (size === "dense") one.cell.title = clip(said, 160); else one.cell.removeAttribute("title");
    }
    mark(one.cell, "aria-current", id !== null && id === selected ? "true" : null);
  }

  function drawLegend(counts) {
    const entries = which === "slots" ? Object.entries(ACTS).map(([sign, [words, colour]]) => [sign, words, colour])
      : [...STATUSES, "running", "ready", "waiting"].map(name => [name, name, name + "-mark"]);
    const shown = entries.filter(([sign]) => counts[sign]);
    const key = which + shown.map(([sign]) => sign).join();
    if (key !== shownLegend) {
      shownLegend = key;
      legend.replaceChildren(...shown.map(([sign, words, colour]) => el("span", { dataset: { sign } }, el("i", { class: "swatch", style: { background: `var(--${colour})` } }), el("span", {}, words))));
    }
    for (const item of legend.children) {
      const words = entries.find(([sign]) => sign === item.dataset.sign)[1];
      say(item.lastChild, `${num(counts[item.dataset.sign])} ${words}`);
    }
  }

  function focusable(index) {
    if (made[current]) made[current].cell.tabIndex = -1;
    current = index;
    if (made[current]) made[current].cell.tabIndex = 0;
  }

  function across() {
    const top = made[0]?.cell.offsetTop;
    const first = made.findIndex(one => one.cell.offsetTop !== top);
    return first < 0 ? made.length : first;
  }

  cells.addEventListener("keydown", event => {
    let to = null;
    if (KEYS[event.key]) to = current + KEYS[event.key][0] + KEYS[event.key][1] * across();
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = made.length - 1;
    else if (event.key === "PageDown") to = Math.min(made.length - 1, current + 5 * across());
    else if (event.key === "PageUp") to = Math.max(0, current - 5 * across());
    if (to === null || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (to < 0 || to >= made.length) return;
    focusable(to);
    made[to].cell.focus();
  });
  cells.addEventListener("focusin", event => { if (event.target.dataset.index) focusable(Number(event.target.dataset.index)); });
  cells.addEventListener("click", event => {
    const cell = event.target.closest(".cell"), one = cell && made[Number(cell.dataset.index)];
    if (one && one.id !== null) open(one.id, cell);
  });
  return { node, update, select(id) { selected = id; update(fold); }, close: width.end };
}
