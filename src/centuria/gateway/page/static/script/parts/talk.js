// A conversation as nodes. Every word of it came from a model, a tool or a user: text, never markup.

import { el, say } from "../dom.js";
import { clip, counted, usd } from "../format.js";

const LONG = 6000, ARGUMENTS = 4000;

/** The nodes of a conversation as `GET .../agents/{agent}` tells it. `data-text` tells whether one has changed. */
export function entries(told) {
  const found = [];
  if (told.system) found.push(message("system", "system prompt", told.system, "s"));
  if (told.prompt) found.push(message("user", "task", told.prompt, "u"));
  for (const turn of told.turns || []) {
    if (turn.reasoning) found.push(thought(turn));
    if (turn.text || turn.error) found.push(answer(turn));
    (turn.tool_calls || []).forEach((call, index) => found.push(tool(call, `${turn.turn}.${index}`)));
  }
  const end = told.outcome, last = (told.turns || []).at(-1);
  if (end && end.status !== "ok") found.push(marked(el("p", { class: "note bad" }, el("strong", {}, end.status), end.cause ? `: ${end.cause}` : ""), "end" + end.status + end.cause));
  else if (end && end.text && end.text !== last?.text) found.push(message("assistant", "outcome", end.text, "o"));
  if (told.capped) found.push(marked(el("p", { class: "note" }, "Parts of this conversation are too long to be shown here; the run's folder has all of it."), "capped"));
  return found;
}

const marked = (node, text) => { node.dataset.text = text; return node; };

function message(role, title, text, id) {
  return marked(el("article", { class: `said ${role}` }, el("header", {}, title), long(text, id)), id + text.length + text.slice(-40));
}

function long(text, id) {
  if (text.length <= LONG) return el("div", { class: "text" }, text);
  return el("div", {}, el("div", { class: "text" }, clip(text, LONG)), el("details", { dataset: { id } }, el("summary", {}, `all ${text.length.toLocaleString("en")} characters`), el("div", { class: "text" }, text)));
}

function thought(turn) {
  const id = `t${turn.turn}`;
  return marked(el("article", { class: "said" }, el("details", { dataset: { id } }, el("summary", {}, "thought"), el("div", { class: "text soft" }, turn.reasoning))), id + turn.reasoning.length);
}

function answer(turn) {
  const more = [turn.attempts > 1 ? counted(turn.attempts, "attempt") : "", turn.cost_usd ? usd(turn.cost_usd) : ""].filter(Boolean).join(", ");
  const node = el("article", { class: "said assistant" }, el("header", {}, `turn ${turn.turn + 1}`, el("span", { style: { fontWeight: "400" } }, more)),
    turn.text ? long(turn.text, `a${turn.turn}`) : null, turn.error ? el("p", { class: "note bad small" }, turn.error) : null);
  return marked(node, `a${turn.turn}:${turn.attempts}:${(turn.text || "").length}:${turn.error || ""}`);
}

function tool(call, id) {
  const wrong = !["ok", "open", "done"].includes(call.state), words = call.state === "open" ? "runs …" : call.state;
  const body = [];
  if (call.arguments) body.push(el("details", { dataset: { id: `i${id}` } }, el("summary", {}, "asked", el("code", {}, clip(call.arguments, 200))), el("pre", {}, pretty(call.arguments))));
  if (call.result) body.push(el("details", { dataset: { id: `r${id}` } }, el("summary", {}, "got", el("code", {}, clip(call.result, 200))), el("pre", {}, pretty(call.result))));
  return marked(el("article", { class: `said tool${wrong ? " wrong" : ""}` }, el("header", {}, el("b", { class: "own" }, call.name), el("span", {}, words)), body), `c${id}${call.state}${(call.result || "").length}`);
}

function pretty(text) {
  if (text.length > 200_000) return text;
  try {
    const shown = JSON.stringify(JSON.parse(text), null, 2);
    return shown.length > ARGUMENTS * 20 ? text : shown;
  } catch {
    return text;
  }
}

/** What streams now: the text of the newest attempt of the newest turn. */
export function live() {
  const header = el("header", {}, "writes …"), text = el("div", { class: "text" }), thinking = el("div", { class: "text soft" });
  const node = el("article", { class: "said assistant live", hidden: true }, header, thinking, text);
  let turn = -1, attempt = -1, said = [], thought = [];
  function clear() { if (!node.hidden) node.hidden = true; said = []; thought = []; turn = attempt = -1; }
  return {
    node, clear,
    /** True where something is to be drawn. */
    take(delta) {
      if (delta.turn < turn || (delta.turn === turn && delta.attempt < attempt)) return false;
      if (delta.turn !== turn || delta.attempt !== attempt) { turn = delta.turn; attempt = delta.attempt; said = []; thought = []; }
      (delta.reasoning ? thought : said).push(delta.text);
      return true;
    },
    draw() {
      if (turn < 0) return;
      node.hidden = false;
      say(header, `turn ${turn + 1} writes …`);
      say(thinking, thought.length && !said.length ? clip(thought.join(""), LONG) : "");
      say(text, said.join(""));
    },
    /** The conversation as it was read holds what streamed until now. */
    settled(told) {
      const found = (told.turns || []).find(one => one.turn === turn);
      if (told.outcome || (found && (found.finish || (found.tool_calls || []).length))) clear();
    },
  };
}
