// All keys, for admins.

import { get } from "../api.js";
import { chip, el, meter } from "../dom.js";
import { ago, cap, counted, num, usd, when } from "../format.js";

export function keysView() {
  const place = el("div", { class: "card" }, el("p", { class: "soft" }, "Reading …")), stopping = new AbortController();
  const node = el("div", {},
    el("div", { class: "head" }, el("div", {}, el("h1", {}, "Keys"), el("p", { class: "under" }, "What each key may spend and has spent. A new one: ", el("code", {}, "centuria keys add NAME --budget 20")))),
    place);
  get("/v1/keys", { signal: stopping.signal }).then(told => place.replaceChildren(table(told.data)), error => {
    if (error.name !== "AbortError") place.replaceChildren(el("p", { class: "note bad", role: "alert" }, error.message));
  });
  return { title: "Keys", node, close: () => stopping.abort() };
}

function table(keys) {
  if (!keys.length) return el("p", { class: "soft" }, "There is no key yet.");
  const head = [["key"], ["money"], ["spent", "n"], ["held", "n"], ["budget", "n"], ["may use"], ["made", "n"]];
  return el("table", { class: "rows fold" },
    el("thead", {}, el("tr", {}, head.map(([words, kind]) => el("th", { scope: "col", class: kind }, words)))),
    el("tbody", {}, keys.map(row)));
}

function row(key) {
  const bar = meter("Spent");
  bar.update([[key.spent_usd, "model-mark"], [key.held_usd, "money-mark"], [key.leased_usd, "idle-mark"]], key.budget_usd || 1,
    `${usd(key.spent_usd)} spent, ${usd(key.held_usd)} held, ${usd(key.leased_usd)} leased`);
  const state = key.revoked ? chip("failed", "revoked") : key.admin ? el("span", { class: "chip plain" }, "admin") : null;
  const may = [key.models ? counted(key.models.length, "model") : "all models", key.tools ? counted(key.tools.length, "tool") : "all tools",
    key.rpm ? `${num(key.rpm)} requests/min` : "", key.tpm ? `${num(key.tpm)} tokens/min` : ""].filter(Boolean).join(", ");
  return el("tr", { class: key.revoked ? "soft" : null },
    el("td", {}, el("div", { class: "title" }, el("strong", { class: "own" }, key.name), state), el("div", { class: "tiny soft mono" }, key.id)),
    el("td", { class: "wide", style: { minWidth: "90px" } }, key.budget_usd === null ? null : bar.node),
    el("td", { class: "n", "data-label": "spent" }, usd(key.spent_usd)), el("td", { class: "n", "data-label": "held" }, usd(key.held_usd)),
    el("td", { class: "n", "data-label": key.budget_usd === null ? null : "of" }, key.budget_usd === null ? "no cap" : cap(key.budget_usd)),
    el("td", { class: "small soft wide" }, may),
    el("td", { class: "n small soft", title: key.created ? when(key.created) : null }, key.created ? ago(key.created) : ""));
}
