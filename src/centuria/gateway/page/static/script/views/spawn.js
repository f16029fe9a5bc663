// The form of a new swarm.

import { get, post } from "../api.js";
import { announce, button, choice, el, mark, say } from "../dom.js";
import { counted, short } from "../format.js";
import { taskList } from "./spawn_tasks.js";

const FIELDS = { goal: "goal", tasks: "tasks", model: "model", mcp_tools: "tools", max_agents: "agents", budget_usd: "budget", name: "name", system: "system" };

export function spawnView({ who }) {
  const wrongs = new Map(), stopping = new AbortController();
  let which = "goal", tools = [];

  function field(id, words, control, hint) {
    const wrong = el("p", { class: "wrong", id: id + "-wrong" });
    wrongs.set(id, { wrong, control, words });
    control.id = id;
    mark(control, "aria-describedby", (hint ? id + "-hint " : "") + id + "-wrong");
    return el("div", { class: "field" }, el("label", { for: id }, words), control, wrong, hint ? el("p", { class: "hint", id: id + "-hint" }, hint) : null);
  }

  const goal = el("textarea", { placeholder: "Compare the annual reports of the ten largest banks and say which one is riskiest, and why." });
  const list = taskList({ register: (id, words, control, wrong) => wrongs.set(id, { wrong, control, words }), forget: id => wrongs.delete(id) });
  const goalField = field("goal", "The goal", goal, "One agent takes it and makes others as it sees fit.");
  const mode = choice("What the swarm works on", [["goal", "A goal"], ["tasks", "Tasks"]], which, value => { which = value; goalField.hidden = value !== "goal"; list.node.hidden = value !== "tasks"; if (value === "tasks") list.begin(); });
  list.node.hidden = true;
  const model = el("select", {}, el("option", { value: "" }, "the gateway's first"));
  const agents = el("input", { type: "number", min: "1", step: "1", inputmode: "numeric", placeholder: "as many as allowed" });
  const budget = el("input", { type: "text", inputmode: "decimal", placeholder: "5.00", autocomplete: "off" });
  const name = el("input", { type: "text", maxlength: "200", autocomplete: "off" }), system = el("textarea", { style: { minHeight: "72px" } });
  const toolBox = el("fieldset", { id: "tools" }, el("legend", {}, "Tools"), el("p", { class: "soft small" }, "Reading …")), toolWrong = el("p", { class: "wrong", id: "tools-wrong" });
  wrongs.set("tools", { wrong: toolWrong, control: toolBox, words: "Tools" });
  const summary = el("div", { class: "wrongs", role: "alert", tabindex: "-1", hidden: true });
  const go = el("button", { class: "button main", type: "submit" }, "Start the swarm"), remark = el("p", { class: "small soft" });
  const form = el("form", { class: "form", novalidate: true }, summary,
    el("div", { class: "stack" }, mode.node, goalField, list.node),
    el("div", { class: "pair" }, field("model", "Model", model, " "), field("agents", "Agents at once", agents, "At most so many work at the same time.")),
    el("div", { class: "field" }, toolBox, toolWrong),
    el("div", { class: "pair" }, withMoney(field("budget", "Budget", budget, "In dollars. The swarm stops before it spends more.")), field("name", "Name", name, "Optional; how it is listed.")),
    el("details", {}, el("summary", { class: "soft small" }, "A system prompt for all agents"), el("div", { style: { marginTop: "12px" } }, field("system", "System prompt", system))),
    el("div", { class: "end" }, go, remark));

  function withMoney(node) {
    const box = el("div", { class: "money" });
    budget.replaceWith(box);
    box.append(budget);
    return node;
  }

  // -- what there is to choose from --
  get("/v1/models", { signal: stopping.signal }).then(told => {
    const found = told.data || [];
    model.replaceChildren(...found.map(one => el("option", { value: one.id }, one.id)));
    const hint = document.getElementById("model-hint");
    const about = () => {
      const one = found.find(each => each.id === model.value) || {};
      const price = one.price || one.pricing || {}, parts = [];
      const input = price.input_usd ?? price.input ?? price.prompt, output = price.output_usd ?? price.output ?? price.completion;
      if (input !== undefined && output !== undefined) parts.push(`$${input} in, $${output} out per million tokens`);
      const context = one.context ?? one.context_length ?? one.context_window;
      if (context) parts.push(`${short(context)} tokens of context`);
      if (hint) say(hint, parts.join(", ") || " ");
    };
    model.addEventListener("change", about);
    about();
    if (!found.length) say(remark, "Your key may use no model, so no swarm can start.");
  }, error => { if (error.name !== "AbortError") say(remark, `The models cannot be read: ${error.message}`); });

  get("/v1/mcp/tools", { signal: stopping.signal }).then(told => {
    tools = (told.data || told.tools || []).map(one => one.name).filter(Boolean);
    drawTools();
  }, error => {
    if (error.name === "AbortError") return;
    toolBox.replaceChildren(el("legend", {}, "Tools"), el("p", { class: "soft small" }, error.status === 404 ? "This gateway has no tools." : error.message));
  });

  function drawTools() {
    if (!tools.length) { toolBox.replaceChildren(el("legend", {}, "Tools"), el("p", { class: "soft small" }, "This gateway has no tools for your key.")); return; }
    const count = el("span", { class: "soft small plain", "aria-live": "polite" });
    const boxes = tools.map(tool => el("input", { type: "checkbox", name: "tool", value: tool }));
    const told = () => { const n = boxes.filter(box => box.checked).length; say(count, n ? ` ${counted(n, "tool")} chosen` : " none chosen"); };
    const set = on => () => { for (const box of boxes) box.checked = on; told(); };
    toolBox.replaceChildren(el("legend", {}, "Tools", count),
      el("div", { class: "ticks" }, boxes.map((box, index) => el("label", { title: tools[index] }, box, el("span", { class: "mono own" }, tools[index])))),
      el("div", { class: "actions", style: { marginTop: "8px" } }, button("All", set(true), { class: "little quiet" }), button("None", set(false), { class: "little quiet" })));
    toolBox.addEventListener("change", told);
    told();
  }

  // -- sending --
  function wrong(id, text) {
    const one = wrongs.get(id);
    if (!one) return false;
    say(one.wrong, text);
    mark(one.control, "aria-invalid", one.control.tagName === "FIELDSET" || one.control.tagName === "DIV" ? null : "true");
    return true;
  }

  function clear() {
    for (const one of wrongs.values()) { say(one.wrong, ""); mark(one.control, "aria-invalid", null); }
    summary.hidden = true;
  }

  function body() {
    const found = [], said = {};
    if (which === "goal") { if (goal.value.trim()) said.goal = goal.value; else found.push(["goal", "Say what the swarm is to do."]); }
    else { said.tasks = list.read(found); }
    if (model.value) said.model = model.value;
    const chosen = [...form.querySelectorAll("input[name=tool]:checked")].map(box => box.value);
    if (chosen.length) said.mcp_tools = chosen;
    if (agents.value.trim() || agents.validity.badInput) {
      const count = Number(agents.value);
      if (Number.isInteger(count) && count >= 1) said.max_agents = count;
      else found.push(["agents", "A whole number, 1 or more."]);
    }
    if (budget.value.trim()) {
      const text = budget.value.trim().replace(/^\$/, ""), amount = Number(text);
      if (text !== "" && Number.isFinite(amount) && amount > 0) said.budget_usd = amount;
      else found.push(["budget", "Dollars, more than 0, such as 2.50."]);
    }
    if (name.value.trim()) said.name = name.value.trim();
    if (system.value.trim()) said.system = system.value;
    return [said, found];
  }

  function refuse(found) {
    for (const [id, text] of found) wrong(id, text);
    summary.hidden = false;
    summary.replaceChildren(el("h2", {}, found.length === 1 ? "One thing is not right" : `${found.length} things are not right`),
      el("ul", {}, found.map(([id, text]) => {
        const one = wrongs.get(id);
        if (!one) return el("li", { class: "own" }, text);
        return el("li", {}, el("a", { href: `#${id}`, onclick: event => { event.preventDefault(); (one.control.focus ? one.control : form).focus(); } }, `${one.words}: ${text}`));
      })));
    summary.focus();
  }

  form.addEventListener("submit", async event => {
    event.preventDefault();
    if (go.disabled) return;
    clear();
    const [said, found] = body();
    if (found.length) { refuse(found); return; }
    go.disabled = true;
    say(go, "Starting …");
    try {
      const told = await post("/v1/agents/swarm/spawn", said);
      announce("The swarm is started");
      location.hash = "#/runs/" + encodeURIComponent(told.id);
    } catch (error) {
      const task = /^tasks\[(\d+)\](?:\.(\w+))?/.exec(error.param || "");
      const id = task ? list.field(Number(task[1]), task[2]) : FIELDS[error.param] || "";
      refuse([[id, error.message]]);
    } finally {
      go.disabled = false;
      say(go, "Start the swarm");
    }
  });

  const left = who.key.models ? `Your key may use ${counted(who.key.models.length, "model")}.` : "";
  return { title: "New swarm", node: el("div", { class: "narrow" }, el("div", { class: "head" }, el("div", {}, el("h1", {}, "New swarm"), el("p", { class: "under" }, `One job, many agents, one budget. ${left}`))), form), close: () => stopping.abort() };
}
