// The timeline: one lane a slot, and above it how many calls were in flight.

import { button, el, mark, paced, say, widthOf } from "../dom.js";
import { shownResource } from "../fold.js";
import { num, sec } from "../format.js";
import { KINDS } from "../spans.js";
import { colours, sized, whenRecoloured } from "../theme.js";
import { ticks } from "../scale.js";

const WORDS = { model: "model calls", tool: "tool calls", wait: "waiting in queues", agent: "between calls" };
const BINS = 300, STRIP = 84, AXIS = 20, LEFT = 42, TALL = 420;
const BAD = new Set(["lost", "failed", "unknown"]);
const HINT = "Point at a call to see what it was. Drag to move, Ctrl and wheel to zoom.";

export function timeline({ open }) {
  const shown = { model: true, tool: true, wait: true, agent: true };
  const strip = el("canvas", { "aria-hidden": "true" }), canvas = el("canvas", { tabindex: "0", role: "application" });
  const inner = el("div", {}, canvas), box = el("div", { class: "lanes" }, inner), pointed = el("p", { class: "pointed own", "aria-live": "polite" }, HINT);
  const legend = el("div", { class: "legend" }, ["model", "tool", "wait", "agent"].map(kind => {
    const one = el("button", { type: "button", "aria-pressed": "true", onclick: () => { shown[kind] = !shown[kind]; mark(one, "aria-pressed", String(shown[kind])); redraw(); } },
      el("i", { class: "swatch", style: { background: `var(--${kind === "agent" ? "lane" : kind + "-mark"})` } }), WORDS[kind]);
    return one;
  }));
  const all = button("All", () => { live = true; from = null; redraw(); }, { class: "little", title: "Show all, and follow what happens" });
  const node = el("section", { class: "card" }, el("header", {}, el("h2", {}, "Timeline"), legend,
    el("div", { class: "actions" }, button("−", () => zoom(0.5), { class: "little", "aria-label": "Zoom out" }), button("+", () => zoom(2), { class: "little", "aria-label": "Zoom in" }), all)),
  el("div", { class: "drawn" }, strip), el("div", { class: "drawn" }, box), pointed);
  let fold = null, from = null, to = null, live = true, selected = -1, lanes = [], loose = false, high = 4, end = 1;
  const redraw = paced(draw, 60);
  const stop = whenRecoloured(() => redraw());
  box.addEventListener("scroll", () => redraw());
  const width = widthOf(box, () => redraw());

  const start = () => fold.startedAt ?? 0;
  function update(next, now) {
    fold = next;
    end = Math.max(0.5, (fold.working ? now : fold.endedAt ?? fold.at) - start());
    redraw();
  }

  function prepare() {
    const spans = fold.spans, agents = fold.resources.get("agents");
    loose = spans.lanes.has(-1);
    const count = Math.max(spans.slots, Math.min(agents?.limit || 0, fold.total), 1) + (loose ? 1 : 0);
    lanes = Array.from({ length: count }, (_, lane) => spans.lanes.get(loose && lane === count - 1 ? -1 : lane) || []);
    high = Math.max(4, Math.min(16, Math.floor(TALL / count)));
    const tall = count * high + "px";
    if (inner.style.height !== tall) inner.style.height = tall;
    mark(canvas, "aria-label", `Timeline of ${num(spans.slots)} slots, ${num(spans.count)} spans. Left and right move, plus and minus zoom, 0 shows all, n and p go through the calls, Enter opens the agent.`);
    if (live || from === null) { from = 0; to = end; }
  }

  function draw() {
    if (!fold || !node.isConnected) return;
    prepare();
    const wide = width.now;
    if (wide < LEFT + 40) return;
    drawStrip(wide);
    drawLanes(wide);
  }

  function drawStrip(wide) {
    const c = sized(strip, wide, STRIP), colour = colours(), base = STRIP - AXIS, area = wide - LEFT, spans = fold.spans, step = (to - from) / BINS;
    const sums = { model: new Float64Array(BINS), tool: new Float64Array(BINS), wait: new Float64Array(BINS) };
    for (let i = 0; i < spans.count; i++) {
      const bins = shown[KINDS[spans.kind[i]]] && sums[KINDS[spans.kind[i]]];
      if (!bins) continue;
      const a = Math.max(spans.start[i] - start(), from), b = Math.min((Number.isNaN(spans.end[i]) ? start() + end : spans.end[i]) - start(), to);
      if (b <= a) continue;
      const last = Math.min(BINS - 1, Math.floor((b - from) / step));
      for (let bin = Math.floor((a - from) / step); bin <= last; bin++) {
        const low = from + bin * step;
        bins[bin] += (Math.min(b, low + step) - Math.max(a, low)) / step;
      }
    }
    let most = 1;
    for (let bin = 0; bin < BINS; bin++) most = Math.max(most, sums.model[bin] + sums.tool[bin] + sums.wait[bin]);
    const under = new Float64Array(BINS);
    for (const kind of ["model", "tool", "wait"]) {
      c.fillStyle = colour[kind];
      c.globalAlpha = kind === "wait" ? 0.5 : 0.85;
      c.beginPath();
      for (let bin = 0; bin < BINS; bin++) {
        const top = under[bin] + sums[kind][bin];
        c.rect(LEFT + area * bin / BINS, base - (base - 8) * top / most, area / BINS + 0.4, (base - 8) * sums[kind][bin] / most);
        under[bin] = top;
      }
      c.fill();
    }
    c.globalAlpha = 1;
    c.fillStyle = colour.soft; c.strokeStyle = colour.line; c.textBaseline = "middle"; c.textAlign = "right";
    c.fillText(num(Math.round(most)), LEFT - 8, 9);
    c.fillText("0", LEFT - 8, base - 3);
    c.beginPath(); c.moveTo(LEFT, base + 0.5); c.lineTo(wide, base + 0.5);
    c.textAlign = "center";
    for (const at of ticks(from, to, area / 100)) {
      const x = LEFT + area * (at - from) / (to - from), words = at === 0 ? "0" : sec(at), half = c.measureText(words).width / 2;
      c.moveTo(x + 0.5, base); c.lineTo(x + 0.5, base + 4);
      if (x + half < wide) c.fillText(words, x, base + 13);
    }
    c.stroke();
  }

  function drawLanes(wide) {
    const tall = Math.min(TALL, lanes.length * high), c = sized(canvas, wide, tall), colour = { ...colours(), agent: colours().lane }, area = wide - LEFT, spans = fold.spans;
    const top = box.scrollTop, scale = area / (to - from), gap = high > 5 ? 2 : 1, thick = high - gap;
    const last = Math.min(lanes.length, Math.ceil((top + tall) / high) + 1);
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find(count => count * high >= 26) || 2000;
    for (let lane = Math.floor(top / high); lane < last; lane++) {
      const y = lane * high - top;
      for (const layer of [0, 1]) {
        for (const i of lanes[lane]) {
          const kind = KINDS[spans.kind[i]];
          if ((kind === "agent") !== (layer === 0) || !shown[kind]) continue;
          let x = (spans.start[i] - start() - from) * scale;
          let w = ((Number.isNaN(spans.end[i]) ? start() + end : spans.end[i]) - spans.start[i]) * scale;
          if (x + w < 0 || x > area) continue;
          if (x < 0) { w += x; x = 0; }
          w = Math.min(Math.max(w, layer === 0 ? 0.5 : 0.8), area - x);
          const state = spans.words[spans.state[i]];
          c.fillStyle = layer === 1 && BAD.has(state) ? colour.failed : colour[kind];
          c.globalAlpha = kind === "wait" ? 0.55 : 1;
          c.fillRect(LEFT + x, y, w, thick);
          if (layer === 0 && state !== "" && state !== "ok" && colour[state]) { c.globalAlpha = 1; c.fillStyle = colour[state]; c.fillRect(LEFT + x + Math.max(0, w - 3), y, Math.min(3, w), thick); }
          if (i === selected) { c.globalAlpha = 1; c.strokeStyle = colour.ink; c.lineWidth = 2; c.strokeRect(LEFT + x - 1, y - 0.5, Math.max(w, 3) + 2, thick + 1); c.lineWidth = 1; }
        }
      }
      c.globalAlpha = 1; c.fillStyle = colour.soft; c.textAlign = "right"; c.textBaseline = "middle";
      if (loose && lane === lanes.length - 1) { if (high >= 8) c.fillText("merge", LEFT - 8, y + thick / 2 + 0.5); }
      else if (lane % every === 0) c.fillText(String(lane), LEFT - 8, Math.max(6, y + thick / 2 + 0.5));
    }
  }

  function view(a, b) {
    const span = Math.min(end, Math.max(Math.min(0.02, end), b - a));
    from = Math.min(Math.max(0, a), end - span);
    to = from + span;
    live = span >= end * 0.999;
    redraw();
  }
  function zoom(factor, at = (from + to) / 2) { if (from !== null) view(at - (at - from) / factor, at + (to - at) / factor); }
  const timeAt = event => from + Math.max(0, event.clientX - canvas.getBoundingClientRect().left - LEFT) / (canvas.clientWidth - LEFT) * (to - from);

  function spanAt(event) {
    const place = canvas.getBoundingClientRect(), lane = lanes[Math.floor((event.clientY - place.top + box.scrollTop) / high)], spans = fold.spans;
    if (!lane || event.clientX < place.left + LEFT) return -1;
    const at = timeAt(event) + start(), slack = (to - from) / canvas.clientWidth * 2;
    let found = -1;
    for (const i of lane) {
      if (!shown[KINDS[spans.kind[i]]] || spans.start[i] - slack > at || (Number.isNaN(spans.end[i]) ? Infinity : spans.end[i]) + slack < at) continue;
      if (found < 0 || KINDS[spans.kind[found]] === "agent" || KINDS[spans.kind[i]] !== "agent") found = i;
    }
    return found;
  }
  function words(i) {
    const spans = fold.spans, task = spans.words[spans.task[i]], kind = KINDS[spans.kind[i]], name = spans.words[spans.name[i]], state = spans.words[spans.state[i]];
    const took = Number.isNaN(spans.end[i]) ? "not over yet" : sec(spans.end[i] - spans.start[i]);
    const what = kind === "agent" ? "the whole task" : kind === "wait" ? `waited for ${shownResource(name)}` : `${kind} ${name}`;
    return `${task}: ${what}, ${took}, from ${sec(spans.start[i] - start())}` + (kind === "wait" || !state ? "" : `, ${state}`);
  }
  function choose(i) { selected = i; say(pointed, i < 0 ? HINT : words(i)); redraw(); }
  function reveal(i) {
    const spans = fold.spans, lane = spans.slot[i] < 0 ? lanes.length - 1 : spans.slot[i], at = spans.start[i] - start(), span = to - from;
    if (lane * high < box.scrollTop || (lane + 1) * high > box.scrollTop + box.clientHeight) box.scrollTop = lane * high - box.clientHeight / 2;
    if (at < from || at > to) view(at - span / 2, at + span / 2);
    choose(i);
  }

  let grabbed = null, moved = false;
  canvas.addEventListener("pointerdown", event => { grabbed = [event.clientX, from, to]; moved = false; });
  const letGo = () => { grabbed = null; };
  window.addEventListener("pointerup", letGo);
  window.addEventListener("pointercancel", letGo);
  canvas.addEventListener("pointermove", event => {
    if (!fold || from === null) return;
    if (grabbed && Math.abs(event.clientX - grabbed[0]) > 3) {
      moved = true;
      const by = (grabbed[0] - event.clientX) / (canvas.clientWidth - LEFT) * (grabbed[2] - grabbed[1]);
      view(grabbed[1] + by, grabbed[2] + by);
    } else if (event.pointerType !== "touch") { const i = spanAt(event); if (i !== selected) choose(i); }
  });
  canvas.addEventListener("pointerleave", () => { if (document.activeElement !== canvas) choose(-1); });
  canvas.addEventListener("click", event => {
    if (moved || !fold) return;
    const i = spanAt(event);
    choose(i);
    if (i >= 0) open(fold.spans.words[fold.spans.task[i]], canvas);
  });
  canvas.addEventListener("wheel", event => {
    if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(Math.exp(-event.deltaY / 200), timeAt(event)); }
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); const by = event.deltaX / canvas.clientWidth * (to - from); view(from + by, to + by); }
  }, { passive: false });
  canvas.addEventListener("keydown", event => {
    if (!fold || from === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = (to - from) / 5, spans = fold.spans;
    const next = by => { let i = selected < 0 && by < 0 ? spans.count : selected; do i += by; while (i >= 0 && i < spans.count && (!shown[KINDS[spans.kind[i]]] || KINDS[spans.kind[i]] === "agent")); if (i >= 0 && i < spans.count) reveal(i); };
    const keys = { ArrowLeft: () => view(from - step, to - step), ArrowRight: () => view(from + step, to + step), "+": () => zoom(1.6), "=": () => zoom(1.6), "-": () => zoom(1 / 1.6),
      0: () => { live = true; redraw(); }, ArrowUp: () => { box.scrollTop -= 60; }, ArrowDown: () => { box.scrollTop += 60; }, n: () => next(1), p: () => next(-1),
      Enter: () => { if (selected >= 0) open(spans.words[spans.task[selected]], canvas); } };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  return { node, update, redraw, close() { stop(); width.end(); redraw.end(); window.removeEventListener("pointerup", letGo); window.removeEventListener("pointercancel", letGo); } };
}
