// What agents share: tools, servers, sessions, the model. Limits can be changed while the run works.

import { post, swarmPath } from "../api.js";
import { announce, el, mark, meter, say } from "../dom.js";
import { shownResource } from "../fold.js";
import { num, sec } from "../format.js";

const KINDS = { "": "", model: "model", server: "server", lease: "sessions" };
const slug = name => name.slice(name.indexOf(":") + 1).split("__")[0];
const SETTLE_MS = 450, MOST = 100_000;

export function queues(swarm) {
  const body = el("tbody"), rows = new Map();
  const head = [["what"], ["in use"], ["waiting", "n"], ["served", "n"], ["wait p50", "n"], ["p99", "n"], ["limit", "n"]];
  const none = el("p", { class: "soft small" }, "No tool or model has been used yet.");
  const table = el("table", { class: "rows fold queues", hidden: true }, el("thead", {}, el("tr", {}, head.map(([words, kind]) => el("th", { scope: "col", class: kind }, words)))), body);
  const node = el("section", { class: "card" }, el("header", {}, el("h2", {}, "Queues")), none, table);

  function update(fold) {
    const shown = [...fold.resources.values()].filter(row => row.limit || row.granted || row.waiting);
    none.hidden = shown.length > 0;
    table.hidden = !shown.length;
    for (const resource of shown) {
      let row = rows.get(resource.name);
      if (!row) { rows.set(resource.name, row = newRow(resource.name, swarm)); body.append(row.node); }
      row.update(resource, fold);
    }
  }
  return { node, update };
}

function newRow(name, swarm) {
  const kind = name.includes(":") ? name.slice(0, name.indexOf(":")) : "", bare = name.slice(name.indexOf(":") + 1);
  const title = kind === "tool" ? shownResource(name) : bare;
  const bar = meter(`${title} in use`), use = el("span"), waiting = el("td", { class: "n", "data-label": "waiting" }), served = el("td", { class: "n", "data-label": "served" });
  const p50 = el("td", { class: "n soft", "data-label": "wait p50" }), p99 = el("td", { class: "n soft", "data-label": "p99" });
  const gate = el("div", { class: "tiny hot" });
  const control = kind === "model" ? governed() : stepper(name, title, swarm);
  const node = el("tr", {}, el("td", {}, el("span", { class: "queue-name" }, title), " ", el("span", { class: "tiny soft own" }, KINDS[kind] ?? `tool of ${slug(name)}`), gate),
    el("td", { class: "wide" }, el("div", { class: "use" }, bar.node, use)), waiting, served, p50, p99, el("td", { class: "n" }, control.node));
  function update(row, fold) {
    const full = row.limit > 0 && row.inUse >= row.limit;
    bar.update([[row.inUse, kind === "model" || name === "agents" ? "model-mark" : full ? "wait-mark" : "tool-mark"]], Math.max(row.limit, row.inUse, 1), `${row.inUse} of ${row.limit} in use`);
    say(use, `${num(row.inUse)}/${num(row.limit)}`);
    say(waiting, num(row.waiting));
    waiting.classList.toggle("hot", row.waiting > 0);
    say(served, num(row.granted));
    say(p50, sec(row.waits.at(0.5)));
    say(p99, sec(row.waits.at(0.99)));
    const closed = fold.gates.get(kind === "model" ? name.slice(6) : name);
    say(gate, closed && fold.working && closed.until > fold.at ? closed.reason : "");
    control.update(row, fold.working);
  }
  return { node, update };
}

/** The governor finds a model's own limit. */
function governed() {
  const node = el("span", { class: "soft small" });
  return { node, update(row) { say(node, `${num(row.limit)}, governed`); mark(node, "title", row.reason); } };
}

function stepper(name, title, swarm) {
  const input = el("input", { type: "number", min: "0", step: "1", inputmode: "numeric", "aria-label": `Limit of ${title}` });
  const step = by => el("button", { type: "button", "aria-label": `${by > 0 ? "One more" : "One less"} for ${title}`, onclick: () => { input.value = String(Math.min(most, Math.max(0, Number(input.value || 0) + by))); settle(); } }, by > 0 ? "+" : "−");
  const node = el("div", { class: "limit" }, step(-1), input, step(1));
  const fixed = el("span", { class: "soft", hidden: true });
  let timer = 0, limit = 0, wanted = null, most = MOST;

  function settle() { wanted = input.value; clearTimeout(timer); timer = setTimeout(send, SETTLE_MS); }
  async function send() {
    clearTimeout(timer);
    const text = input.value.trim(), value = Number(text);
    if (wanted === null) return;
    if (text === "" || !Number.isInteger(value) || value < 0) { fail("A limit is a whole number, 0 or more."); return; }
    if (value > most) { fail(name === "agents" ? `This swarm began with ${num(most)} agents at once, and cannot have more.` : `A limit is ${num(most)} at most.`); return; }
    wanted = null;
    if (value === limit) return;
    try {
      await post(swarmPath(swarm, "limits"), { resource: name, limit: value });
      limit = value;
      mark(input, "aria-invalid", null);
      announce(value === 0 ? `${title} is paused` : `The limit of ${title} is ${num(value)} now`);
    } catch (error) {
      fail(error.message);
    }
  }
  function fail(text) {
    wanted = null;
    mark(input, "aria-invalid", null);
    input.value = String(limit);
    announce(text, { bad: true });
  }
  input.addEventListener("input", () => { wanted = input.value; clearTimeout(timer); });
  input.addEventListener("change", () => { if (wanted !== null) send(); });
  input.addEventListener("keydown", event => {
    if (event.key === "Enter") { event.preventDefault(); send(); }
    if (event.key === "Escape" && wanted !== null) { event.stopPropagation(); wanted = null; clearTimeout(timer); input.value = String(limit); }
  });
  return {
    node: el("div", {}, node, fixed),
    update(row, working) {
      limit = row.limit;
      // Slots of agents are there from the start: they can be fewer for a while, and not more.
      most = name === "agents" ? row.first ?? MOST : MOST;
      mark(input, "max", String(most));
      if (wanted === null && input.value !== String(limit)) input.value = String(limit);
      node.hidden = !working;
      fixed.hidden = working;
      say(fixed, num(limit));
      mark(node, "title", row.reason);
    },
  };
}
