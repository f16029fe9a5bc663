// The tasks of a new swarm: one by one, or pasted as JSON.

import { button, choice, el, say } from "../dom.js";

export function taskList({ register, forget }) {
  const rows = [], box = el("div"), wrong = el("p", { class: "wrong", id: "tasks-wrong" });
  const json = el("textarea", { id: "tasks", "aria-describedby": "tasks-wrong tasks-hint", "aria-label": "Tasks as JSON", spellcheck: "false", class: "mono", style: { minHeight: "220px" }, placeholder: '[{"id": "a", "prompt": "…"}, {"id": "b", "prompt": "…", "needs": ["a"]}]' });
  const jsonField = el("div", { class: "field", hidden: true }, json, el("p", { class: "hint", id: "tasks-hint" }, "A list of objects with id, prompt and, if need be, needs and priority."));
  const add = button("Add a task", () => newRow().id.focus(), { class: "little" });
  const single = el("div", {}, box, el("div", { class: "actions", style: { marginTop: "10px" } }, add));
  let pasted = false, count = 0;
  const how = choice("How the tasks are given", [["rows", "One by one"], ["json", "As JSON"]], "rows", value => {
    if (value === "json" && !pasted && rows.some(row => row.id.value || row.prompt.value)) json.value = JSON.stringify(rows.map(written), null, 2);
    pasted = value === "json";
    jsonField.hidden = !pasted;
    single.hidden = pasted;
  });
  const node = el("div", { class: "stack" }, how.node, single, jsonField, wrong);
  register("tasks", "Tasks", json, wrong);

  function newRow() {
    const number = count++, make = (name, control, words) => {
      const id = `task-${number}-${name}`, said = el("p", { class: "wrong", id: id + "-wrong" });
      control.id = id;
      control.setAttribute("aria-describedby", id + "-wrong");
      register(id, `Task ${rows.length + 1}, ${name}`, control, said);
      return el("div", { class: "field" }, el("label", { for: id }, words), control, said);
    };
    const row = { number, id: el("input", { type: "text", autocomplete: "off", spellcheck: "false" }), prompt: el("textarea"), needs: el("input", { type: "text", autocomplete: "off", spellcheck: "false", placeholder: "ids, with commas" }) };
    const remove = button("Remove", () => {
      for (const name of ["id", "prompt", "needs"]) forget(`task-${number}-${name}`);
      const place = rows.indexOf(row);
      rows.splice(place, 1);
      row.node.remove();
      named();
      (rows[Math.min(place, rows.length - 1)]?.id || add).focus();
    }, { class: "little quiet" });
    row.node = el("div", { class: "task", role: "group" }, el("div", { class: "top" }, make("id", row.id, "Id"), make("needs", row.needs, "Needs"), remove), make("prompt", row.prompt, "What it is to do"));
    rows.push(row);
    box.append(row.node);
    named();
    return row;
  }

  const named = () => rows.forEach((row, index) => row.node.setAttribute("aria-label", `Task ${index + 1}`));
  function written(row) {
    const needs = row.needs.value.split(",").map(id => id.trim()).filter(Boolean);
    return { id: row.id.value.trim(), prompt: row.prompt.value, ...(needs.length ? { needs } : {}) };
  }

  return {
    node,
    /** One empty task to begin with. */
    begin() { if (!rows.length) newRow(); },
    /** The field of the task with this number, as the gateway names it. */
    field: (number, name = "id") => pasted || !rows[number] ? "tasks" : `task-${rows[number].number}-${name}`,
    /** The tasks; what is wrong with them is added to `found`. */
    read(found) {
      if (pasted) {
        try {
          const value = JSON.parse(json.value);
          if (Array.isArray(value)) return value;
          found.push(["tasks", "The JSON must be a list of tasks."]);
        } catch (error) {
          found.push(["tasks", json.value.trim() ? `This is not JSON: ${error.message}` : "Paste a list of tasks."]);
        }
        return [];
      }
      if (!rows.length) { say(wrong, ""); found.push(["tasks", "Add one task at least."]); return []; }
      const known = new Set(rows.map(row => row.id.value.trim())), seen = new Set();
      return rows.map(row => {
        const task = written(row), place = name => `task-${row.number}-${name}`;
        if (!task.id) found.push([place("id"), "Give it an id."]);
        else if (seen.has(task.id)) found.push([place("id"), "Another task has this id."]);
        seen.add(task.id);
        if (!task.prompt.trim()) found.push([place("prompt"), "Say what it is to do."]);
        const missing = (task.needs || []).filter(id => id !== "*" && !known.has(id));
        if (missing.length) found.push([place("needs"), `There is no task ${missing.join(", ")}.`]);
        else if ((task.needs || []).includes(task.id)) found.push([place("needs"), "It cannot need itself."]);
        return task;
      });
    },
  };
}
