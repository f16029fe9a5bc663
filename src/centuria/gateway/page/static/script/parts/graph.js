// The task graph in layers: what a task needs, and who made it, is above it.

import { el, mark, paced, say, widthOf } from "../dom.js";
import { doingOf } from "../fold.js";
import { clip, num } from "../format.js";
import { colours, sized, whenRecoloured } from "../theme.js";

const BOX = { wide: 132, high: 32, gap: 12, between: 34 }, DOT = { wide: 14, high: 14, gap: 4, between: 26 };
const TITLE = 20, MOST_EDGES = 700, TALL = 420;

export function graph({ open }) {
  const canvas = el("canvas", { tabindex: "0", role: "application" }), inner = el("div", {}, canvas), box = el("div", { class: "graph" }, inner);
  const heading = el("h2", {}, "Task graph"), pointed = el("p", { class: "pointed own", "aria-live": "polite" }, "");
  const node = el("section", { class: "card" }, el("header", {}, heading), el("div", { class: "drawn" }, box), pointed);
  let fold = null, shape = -1, wide = 0, layers = [], places = new Map(), active = null, edges = [], below = new Map(), tall = 40, big = false;
  const redraw = paced(draw, 60), stop = whenRecoloured(() => redraw());
  box.addEventListener("scroll", () => redraw());
  const width = widthOf(box, () => redraw());

  function update(next) {
    fold = next;
    say(heading, `Task graph ${num(fold.total)}`);
    redraw();
  }

  /** The layer of each task: one below the lowest of what it needs, or of who made it. */
  function layOut() {
    const depth = new Map();
    const above = row => [...row.needs, ...(row.parent ? [row.parent] : [])].filter(id => fold.tasks.has(id));
    for (const first of fold.order) {
      const stack = [[first, 0]];
      const entered = new Set();
      while (stack.length) {
        const [row, step] = stack.pop();
        if (depth.has(row.id)) continue;
        if (step === 0 && !entered.has(row.id)) {
          entered.add(row.id);
          stack.push([row, 1]);
          for (const id of above(row)) if (!depth.has(id) && !entered.has(id)) stack.push([fold.tasks.get(id), 0]);
          continue;
        }
        depth.set(row.id, Math.max(-1, ...above(row).map(id => depth.get(id) ?? -1)) + 1);
      }
    }
    layers = [];
    for (const row of fold.order) (layers[depth.get(row.id)] ||= []).push(row);
    layers = layers.filter(Boolean);
    edges = [];
    below = new Map();
    for (const row of fold.order) for (const id of above(row)) { edges.push([id, row.id]); if (!below.has(id)) below.set(id, []); below.get(id).push(row.id); }
  }

  function place() {
    const widest = Math.max(1, ...layers.map(layer => layer.length));
    big = widest * (BOX.wide + BOX.gap) <= wide + BOX.gap;
    const size = big ? BOX : DOT, across = Math.max(1, Math.floor((wide + size.gap) / (size.wide + size.gap)));
    places = new Map();
    let y = 2;
    layers.forEach((layer, index) => {
      y += TITLE;
      const columns = Math.min(across, layer.length), indent = Math.max(0, (wide - columns * (size.wide + size.gap) + size.gap) / 2);
      layer.forEach((row, number) => places.set(row.id, { row, layer: index, number, x: indent + number % across * (size.wide + size.gap), y: y + Math.floor(number / across) * (size.high + size.gap), w: size.wide, h: size.high }));
      y += Math.ceil(layer.length / across) * (size.high + size.gap) - size.gap + size.between;
    });
    tall = Math.max(60, y - size.between + 4);
    inner.style.height = tall + "px";
  }

  function draw() {
    if (!fold || !node.isConnected) return;
    const now = width.now;
    if (now < 40) return;
    if (shape !== fold.shape) { shape = fold.shape; layOut(); wide = 0; }
    if (now !== wide) { wide = now; place(); }
    mark(canvas, "aria-label", `Task graph: ${num(fold.total)} tasks in ${num(layers.length)} layers, ${num(edges.length)} edges. Arrow keys move, Enter opens the agent.`);
    if (pointed.textContent === "") say(pointed, "Point at a task to see what it needs and what needs it.");
    const high = Math.min(TALL, tall), c = sized(canvas, wide, high), colour = colours(), top = box.scrollTop;
    c.translate(0, -top);
    c.textBaseline = "middle";
    drawEdges(c, colour);
    c.textAlign = "left";
    layers.forEach((layer, index) => {
      const words = `${index === 0 ? "first" : `layer ${index + 1}`} · ${num(layer.length)}`, y = places.get(layer[0].id).y - TITLE / 2;
      c.fillStyle = colour.card;
      c.fillRect(0, y - 8, c.measureText(words).width + 6, 16);
      c.fillStyle = colour.soft;
      c.fillText(words, 0, y);
    });
    for (const spot of places.values()) {
      if (spot.y + spot.h < top || spot.y > top + high) continue;
      drawTask(c, colour, spot);
    }
  }

  function drawEdges(c, colour) {
    const near = active === null ? [] : edges.filter(([a, b]) => a === active || b === active);
    const some = edges.length <= MOST_EDGES ? edges : [];
    c.lineWidth = 1;
    c.strokeStyle = colour.ready;
    c.globalAlpha = (active === null ? 1 : 0.4) * (big ? 1 : Math.max(0.15, Math.min(0.8, 40 / edges.length)));
    c.beginPath();
    for (const edge of some) curve(c, edge);
    c.stroke();
    c.globalAlpha = 1;
    c.strokeStyle = colour.accent;
    c.lineWidth = 1.6;
    c.beginPath();
    for (const edge of near) curve(c, edge);
    c.stroke();
    c.lineWidth = 1;
  }

  function curve(c, [upper, lower]) {
    const a = places.get(upper), b = places.get(lower);
    if (!a || !b) return;
    const x1 = a.x + a.w / 2, y1 = a.y + a.h, x2 = b.x + b.w / 2, y2 = b.y, bend = Math.max(10, (y2 - y1) / 2);
    c.moveTo(x1, y1);
    c.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2);
  }

  function drawTask(c, colour, { row, x, y, w, h }) {
    const tone = colour[row.status || row.state] || colour.waiting, is = row.id === active;
    c.beginPath();
    c.roundRect(x, y, w, h, big ? 7 : 4);
    if (big) {
      c.fillStyle = colour.card; c.fill();
      c.globalAlpha = 0.14; c.fillStyle = tone; c.fill(); c.globalAlpha = 1;
      c.lineWidth = is ? 2 : 1; c.strokeStyle = is ? colour.ink : tone; c.stroke();
      c.beginPath(); c.arc(x + 13, y + h / 2, 4, 0, 7); c.fillStyle = tone; c.fill();
      c.fillStyle = colour.ink; c.textAlign = "left";
      c.fillText(fitted(c, row.id, w - 32), x + 23, y + h / 2 + 0.5);
    } else {
      c.fillStyle = tone; c.fill();
      if (is) { c.lineWidth = 2; c.strokeStyle = colour.ink; c.stroke(); }
    }
    c.lineWidth = 1;
  }

  function choose(id) {
    active = id;
    const row = id === null ? null : fold.tasks.get(id);
    if (!row) { say(pointed, "Point at a task to see what it needs and what needs it."); redraw(); return; }
    const needs = row.every ? "needs all before it" : row.needs.length ? `needs ${names(row.needs)}` : row.parent ? `made by ${row.parent}` : "needs nothing";
    const after = below.get(id) || [];
    say(pointed, `${row.id}${row.label ? ` (${row.label})` : ""}: ${doingOf(row)}; ${needs}` + (after.length ? `; needed by ${names(after)}` : ""));
    redraw();
  }
  const names = ids => ids.length <= 4 ? ids.map(id => clip(id, 40)).join(", ") : `${ids.slice(0, 3).map(id => clip(id, 40)).join(", ")} and ${num(ids.length - 3)} more`;
  const at = event => {
    const edge = canvas.getBoundingClientRect(), x = event.clientX - edge.left, y = event.clientY - edge.top + box.scrollTop;
    for (const spot of places.values()) if (x >= spot.x - 2 && x <= spot.x + spot.w + 2 && y >= spot.y - 2 && y <= spot.y + spot.h + 2) return spot.row.id;
    return null;
  };
  canvas.addEventListener("pointermove", event => { if (fold && event.pointerType !== "touch") { const id = at(event); if (id !== active) choose(id); } });
  canvas.addEventListener("pointerleave", () => { if (fold && document.activeElement !== canvas) choose(null); });
  canvas.addEventListener("click", event => { const id = fold && at(event); if (id) { choose(id); open(id, canvas); } });
  canvas.addEventListener("focus", () => { if (fold && active === null && layers.length && canvas.matches(":focus-visible")) choose(layers[0][0].id); });
  canvas.addEventListener("keydown", event => {
    if (!fold || !layers.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const spot = places.get(active) || places.get(layers[0][0].id), size = big ? BOX : DOT, across = Math.max(1, Math.floor((wide + size.gap) / (size.wide + size.gap)));
    const within = number => layers[spot.layer][Math.max(0, Math.min(layers[spot.layer].length - 1, number))].id;
    const other = (layer, last) => { const there = layers[layer]; return there ? there[Math.min(there.length - 1, last ? there.length - 1 - (there.length - 1) % across + spot.number % across : spot.number % across)].id : spot.row.id; };
    const to = {
      ArrowRight: () => within(spot.number + 1), ArrowLeft: () => within(spot.number - 1), Home: () => within(0), End: () => within(Infinity),
      ArrowDown: () => spot.number + across < layers[spot.layer].length ? within(spot.number + across) : other(spot.layer + 1, false),
      ArrowUp: () => spot.number - across >= 0 ? within(spot.number - across) : other(spot.layer - 1, true),
    }[event.key];
    if (event.key === "Enter" && active !== null) { event.preventDefault(); open(active, canvas); }
    if (!to) return;
    event.preventDefault();
    choose(to());
    const there = places.get(active);
    if (there.y < box.scrollTop || there.y + there.h > box.scrollTop + box.clientHeight) box.scrollTop = there.y - box.clientHeight / 2;
  });
  return { node, update, redraw, close() { stop(); width.end(); redraw.end(); } };
}

function fitted(c, text, room) {
  if (c.measureText(text).width <= room) return text;
  let most = text.length;
  while (most > 1 && c.measureText(text.slice(0, most) + "…").width > room) most = Math.floor(most * 0.85);
  return text.slice(0, most) + "…";
}
