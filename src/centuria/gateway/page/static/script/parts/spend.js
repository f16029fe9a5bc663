// Money over time, against the cap.

import { el, say, widthOf } from "../dom.js";
import { PICO, cap, pico, sec, usd } from "../format.js";
import { colours, sized } from "../theme.js";
import { ticks } from "../scale.js";

const HIGH = 170, LEAST_LEFT = 52, BELOW = 22, ABOVE = 14;

export function spend() {
  const canvas = el("canvas", { role: "img", "aria-label": "Money spent over time" }), facts = el("dl", { class: "facts" });
  const node = el("section", { class: "card" }, el("header", {}, el("h2", {}, "Money")), el("div", { class: "drawn" }, canvas), facts);
  const width = widthOf(canvas.parentElement);
  let said = "";

  function update(fold, now) {
    draw(fold, now);
    const rows = [[fold.rehearsal ? "would cost" : "spent", pico(fold.spent)], ["reserved for calls in flight", pico(fold.reserved)], ["held for lost attempts", pico(fold.held)],
      ["cap", fold.cap === null ? "none" : pico(fold.cap)], ["cost of a task so far", fold.ended ? pico(fold.spent / fold.ended) : "–"]];
    const key = rows.join();
    if (key === said) return;
    said = key;
    canvas.setAttribute("aria-label", `Money ${fold.rehearsal ? "that it would cost" : "spent"} over time: ${pico(fold.spent)} ` + (fold.cap === null ? "without a cap" : `of ${pico(fold.cap)}`));
    if (!facts.children.length) facts.append(...rows.flatMap(() => [el("dt"), el("dd")]));
    rows.forEach(([name, value], index) => { say(facts.children[index * 2], name); say(facts.children[index * 2 + 1], value); });
  }

  function draw(fold, now) {
    const wide = width.now;
    if (wide < LEAST_LEFT + 48) return;
    const c = sized(canvas, wide, HIGH), colour = colours();
    const base = HIGH - BELOW, points = fold.spending;
    if (!points.length) return;
    const from = points[0][0], to = Math.max(fold.working ? now : fold.endedAt ?? fold.at, from + 1);
    const close = fold.cap !== null && fold.spent > fold.cap * 0.3;
    const top = Math.max(close ? fold.cap * 1.06 : fold.spent * 1.25, 1e9);
    const levels = [0, top / 2, top].map(level => level * (close ? 1 / 1.06 : 0.8));
    const labels = levels.map(amount => amount === 0 ? "$0" : usd(amount / PICO));
    // Small amounts have many digits.
    const left = Math.max(LEAST_LEFT, Math.ceil(Math.max(...labels.map(label => c.measureText(label).width))) + 10), area = wide - left - 8;
    const x = at => left + area * (at - from) / (to - from), y = amount => base - (base - ABOVE) * amount / top;
    c.strokeStyle = colour.line;
    c.fillStyle = colour.soft;
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const [index, amount] of levels.entries()) {
      const level = Math.round(y(amount)) + 0.5;
      c.beginPath(); c.moveTo(left, level); c.lineTo(wide - 8, level); c.stroke();
      c.fillText(labels[index], left - 8, level);
    }
    const line = new Path2D();
    line.moveTo(x(from), y(0));
    let last = 0;
    for (const [at, amount] of points) { line.lineTo(x(at), y(last)); line.lineTo(x(at), y(amount)); last = amount; }
    line.lineTo(x(to), y(last));
    const filled = new Path2D(line);
    filled.lineTo(x(to), y(0));
    filled.closePath();
    c.globalAlpha = 0.14; c.fillStyle = colour.model; c.fill(filled);
    c.globalAlpha = 1; c.strokeStyle = colour.model; c.lineWidth = 2; c.lineJoin = "round"; c.stroke(line); c.lineWidth = 1;
    if (close) {
      c.setLineDash([5, 4]); c.strokeStyle = colour.failed;
      c.beginPath(); c.moveTo(left, y(fold.cap)); c.lineTo(wide - 8, y(fold.cap)); c.stroke();
      c.setLineDash([]); c.fillStyle = colour.soft; c.textAlign = "left"; c.textBaseline = "bottom";
      c.fillText(`cap ${cap(fold.cap / PICO)}`, left + 6, y(fold.cap) - 2);
    }
    c.fillStyle = colour.soft; c.textAlign = "center"; c.textBaseline = "alphabetic";
    for (const at of ticks(0, to - from, Math.max(2, area / 110))) {
      const centre = x(from + at), half = c.measureText(sec(at)).width / 2;
      if (centre + half < wide) c.fillText(at === 0 ? "0" : sec(at), centre, HIGH - 5);
    }
  }
  return { node, update, close: width.end };
}
