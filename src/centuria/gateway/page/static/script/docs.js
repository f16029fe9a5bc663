// The gateway's OpenAPI document, drawn: its paths with what they take and give. Generic: it knows nothing of our routes.

import { el } from "./dom.js";

const VERBS = ["get", "post", "put", "patch", "delete", "head", "options"];
const DEEP = 6;
const main = document.getElementById("main");
document.querySelector(".skip").addEventListener("click", event => { event.preventDefault(); main.focus(); });

class Document {
  constructor(whole) { this.whole = whole; }

  /** What a `$ref` inside the document stands for. */
  at(value) {
    let found = value;
    for (let hops = 0; found && typeof found.$ref === "string" && hops < 20; hops++) {
      if (!found.$ref.startsWith("#/")) return {};
      found = found.$ref.slice(2).split("/").reduce((inner, part) => {
        const name = part.replaceAll("~1", "/").replaceAll("~0", "~");
        return inner && Object.hasOwn(inner, name) ? inner[name] : undefined;
      }, this.whole);
    }
    return found && typeof found === "object" ? found : {};
  }

  calls() {
    const found = [];
    for (const [path, item] of Object.entries(this.whole.paths || {})) {
      for (const verb of VERBS) {
        const call = this.at(item)[verb];
        if (call) found.push({ path, verb, call, shared: this.at(item).parameters || [], id: `${verb}-${path}`.replace(/[^a-zA-Z0-9]+/g, "-").replace(/-$/, "") });
      }
    }
    return found;
  }
}

/** Text with its `code` set as such, its lines joined to paragraphs. */
const prose = text => String(text).replace(/([^\n])\n(?=[^\n\-*|\d])/g, "$1 ").split(/`([^`]+)`/).map((part, index) => index % 2 ? el("code", {}, part) : part);

function typeOf(doc, schema) {
  const one = doc.at(schema), name = typeof schema?.$ref === "string" ? schema.$ref.split("/").at(-1) : "";
  if (one.const !== undefined) return JSON.stringify(one.const);
  if (Array.isArray(one.enum)) return one.enum.map(value => JSON.stringify(value)).join(" | ");
  const some = one.anyOf || one.oneOf;
  if (some) return some.map(each => typeOf(doc, each)).join(" | ");
  if (one.type === "array") return `list of ${typeOf(doc, one.items || {})}`;
  return name || (Array.isArray(one.type) ? one.type.join(" | ") : one.type || "anything") + (one.format ? ` (${one.format})` : "");
}

function bounds(one) {
  const words = [];
  for (const [key, sign] of [["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"], ["exclusiveMaximum", "<"], ["minLength", "length ≥"], ["maxLength", "length ≤"], ["minItems", "items ≥"], ["maxItems", "items ≤"]]) if (one[key] !== undefined) words.push(`${sign} ${one[key]}`);
  if (one.pattern) words.push(`like ${one.pattern}`);
  if (one.default !== undefined) words.push(`default ${JSON.stringify(one.default)}`);
  return words.join(", ");
}

/** The properties of an object, of a list's items, or of the alternatives. Null where there is nothing to go into. */
function shape(doc, schema, deep = 0) {
  let one = doc.at(schema);
  while (one.type === "array" && one.items) one = doc.at(one.items);
  if (deep > DEEP) return null;
  const parts = [...(one.allOf || []), ...(one.anyOf || []), ...(one.oneOf || [])].map(each => shape(doc, each, deep + 1)).filter(Boolean);
  const names = Object.entries(one.properties || {}), must = new Set(one.required || []);
  if (!names.length) return parts.length ? el("div", {}, parts) : null;
  return el("div", {}, el("ul", { class: "shape" }, names.map(([name, property]) => {
    const inner = shape(doc, property, deep + 1), whole = doc.at(property), more = bounds(whole);
    const line = [el("code", {}, name), " ", el("span", { class: "soft" }, typeOf(doc, property)), must.has(name) ? el("span", { class: "must" }, " required") : null,
      whole.description ? el("span", {}, "  ", prose(whole.description)) : null, more ? el("span", { class: "soft" }, `  ${more}`) : null];
    return el("li", {}, line, inner ? el("details", { open: deep < 1 }, el("summary", {}, "inside"), inner) : null);
  })), parts);
}

function body(doc, title, content) {
  const kinds = Object.entries(content || {});
  return kinds.map(([kind, media]) => [el("h4", {}, title, " ", el("code", {}, kind)), shape(doc, media.schema) || el("p", { class: "small soft" }, typeOf(doc, media.schema || {}))]);
}

function section(doc, { path, verb, call, shared, id }) {
  const parameters = [...shared, ...(call.parameters || [])].map(one => doc.at(one));
  const request = doc.at(call.requestBody || {});
  return el("section", { class: "card call", id, "aria-labelledby": id + "-name" },
    el("h3", { id: id + "-name" }, el("span", { class: "verb", "data-verb": verb }, verb.toUpperCase()), path),
    call.summary ? el("p", {}, prose(call.summary)) : null, call.description && call.description !== call.summary ? el("p", { class: "soft small" }, prose(call.description)) : null,
    parameters.length ? [el("h4", {}, "Parameters"), el("ul", { class: "shape" }, parameters.map(one => el("li", {}, el("code", {}, one.name), " ",
      el("span", { class: "soft" }, `${one.in}, ${typeOf(doc, one.schema || {})}`), one.required ? el("span", { class: "must" }, " required") : null, one.description ? ["  ", prose(one.description)] : "", " ", el("span", { class: "soft" }, bounds(doc.at(one.schema || {}))))))] : null,
    body(doc, "Body", request.content),
    Object.entries(call.responses || {}).map(([status, response]) => {
      const one = doc.at(response), inside = body(doc, `Answer ${status}`, one.content);
      return inside.length ? [inside, one.description ? el("p", { class: "small soft" }, prose(one.description)) : null] : [el("h4", {}, `Answer ${status}`), one.description ? el("p", { class: "small soft" }, prose(one.description)) : null];
    }));
}

function draw(whole) {
  const doc = new Document(whole), calls = doc.calls(), groups = new Map();
  for (const call of calls) { const tag = call.call.tags?.[0] || "Paths"; groups.set(tag, [...(groups.get(tag) || []), call]); }
  const info = whole.info || {};
  main.replaceChildren(
    el("div", { class: "head" }, el("div", {}, el("h1", {}, info.title || "API"), info.version ? el("p", { class: "under" }, `version ${info.version}`) : null, info.description ? el("p", { class: "under about" }, prose(info.description)) : null),
      el("div", { class: "actions" }, el("a", { class: "button", href: "/openapi.json" }, "openapi.json"))),
    el("div", { class: "api" },
      el("nav", { "aria-label": "Paths" }, [...groups].map(([tag, some]) => [el("h2", {}, tag), some.map(({ id, verb, path }) => el("a", { href: "#" + id }, el("span", { class: "verb", "data-verb": verb }, verb.toUpperCase()), path))])),
      el("div", {}, [...groups].map(([tag, some]) => [el("h2", { style: { margin: "0 0 12px" } }, tag), some.map(call => section(doc, call))]))));
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

try {
  const answer = await fetch("/openapi.json", { credentials: "same-origin", redirect: "error" });
  if (!answer.ok) throw new Error(answer.status === 404 ? "This gateway has no OpenAPI document." : `The gateway answered ${answer.status}.`);
  draw(await answer.json());
} catch (error) {
  main.replaceChildren(el("div", { class: "empty" }, el("h1", {}, "The API cannot be shown"), el("p", { role: "alert" }, error instanceof TypeError ? "The gateway cannot be reached." : error.message)));
}
