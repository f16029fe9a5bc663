// Tool calls that wait for a yes.

import { post, swarmPath } from "../api.js";
import { announce, doing, el, say } from "../dom.js";
import { clip, counted } from "../format.js";

export function approvals(swarm) {
  const list = el("ul", { class: "stack" }), heading = el("h2", {}), rows = new Map();
  const node = el("section", { class: "card", hidden: true, "aria-live": "polite" }, el("header", {}, heading), list);
  const give = (call, yes) => async () => { await post(swarmPath(swarm, "approve"), { call, yes }); announce(yes ? "Allowed" : "Refused"); };

  function update(fold) {
    const open = fold.working ? fold.approvals : new Map();
    node.hidden = !open.size;
    say(heading, `${counted(open.size, "tool call")} ${open.size === 1 ? "waits" : "wait"} for a yes`);
    for (const [call, row] of rows) if (!open.has(call)) { row.remove(); rows.delete(call); }
    for (const [call, asked] of open) {
      if (rows.has(call)) continue;
      const row = el("li", { class: "note warn" }, el("div", { class: "title" }, el("strong", { class: "own" }, asked.key.task), el("code", { class: "own" }, asked.name),
        doing("Allow", give(call, true), { class: "little main" }), doing("Refuse", give(call, false), { class: "little" })),
      el("pre", { class: "own", style: { whiteSpace: "pre-wrap", margin: "8px 0 0" } }, clip(asked.arguments, 2000)));
      rows.set(call, row);
      list.append(row);
    }
  }
  return { node, update };
}
