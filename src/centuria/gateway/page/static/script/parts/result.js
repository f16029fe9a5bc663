// The merged answer of a run that has ended.

import { get, swarmPath } from "../api.js";
import { announce, button, el } from "../dom.js";

export function result(swarm) {
  const text = el("div", { class: "text own", style: { whiteSpace: "pre-wrap", maxHeight: "420px", overflowY: "auto" }, tabindex: "0", role: "group", "aria-label": "Result" });
  const copy = button("Copy", async () => {
    try { await navigator.clipboard.writeText(text.textContent); announce("Copied"); }
    catch { announce("The browser did not allow copying.", { bad: true }); }
  }, { class: "little" });
  const node = el("section", { class: "card", hidden: true }, el("header", {}, el("h2", {}, "Result"), copy), text);
  const stopping = new AbortController();
  let asked = false;
  return {
    node, update() {},
    /** The run is over: there is a result to be read. */
    over(yes) {
      if (!yes || asked) return;
      asked = true;
      get(swarmPath(swarm, "result"), { signal: stopping.signal }).then(told => {
        text.textContent = told.answer || "";
        node.hidden = !told.answer;
      }, () => {});
    },
    close: () => stopping.abort(),
  };
}
