// The page: who is signed in, where we are, and what is shown there.

import { session, signOut, whenSignedOut } from "./api.js";
import { announce, button, dots, el, mark } from "./dom.js";
import { keysView } from "./views/keys.js";
import { runView } from "./views/run.js";
import { runsView } from "./views/runs.js";
import { signInView } from "./views/signin.js";
import { spawnView } from "./views/spawn.js";
import { usageView } from "./views/usage.js";

const bar = document.getElementById("bar"), main = document.getElementById("main");
let who = null, shown = null, shownKey = "", first = true;

const PLACES = [
  [/^#\/runs\/([^/]+)(?:\/agents\/([^/]+))?$/, "runs", runView],
  [/^#\/new$/, "new", spawnView],
  [/^#\/usage$/, "usage", usageView],
  [/^#\/keys$/, "keys", keysView],
  [/^(?:#\/?|#\/runs|)$/, "runs", runsView],
];

function places() {
  const found = [["runs", "Runs", "#/runs"], ["new", "New swarm", "#/new"], ["usage", "Usage", "#/usage"]];
  if (who.key.admin) found.push(["keys", "Keys", "#/keys"]);
  return [...found, ["docs", "API", "/docs"]];
}

function showBar(place) {
  if (!bar.childElementCount) {
    const out = who.open ? el("span", { title: "No key is configured: this gateway serves this machine alone." }, "open on this machine")
      : [el("span", { class: "own", title: who.key.name }, who.key.name), button("Sign out", leave, { class: "quiet little" })];
    bar.append(el("div", {},
      el("a", { class: "brand", href: "#/runs" }, dots(3), "Centuria"),
      el("nav", { class: "places", "aria-label": "Places" }, places().map(([name, words, href]) => el("a", { href, dataset: { place: name } }, words))),
      el("div", { class: "who" }, out)));
  }
  bar.hidden = false;
  for (const link of bar.querySelectorAll("[data-place]")) mark(link, "aria-current", link.dataset.place === place ? "page" : null);
}

async function leave() {
  try {
    await signOut();
  } catch (error) {
    announce(error.message, { bad: true });
    return;
  }
  askToSignIn();
}

function askToSignIn() {
  who = null;
  bar.hidden = true;
  bar.replaceChildren();
  show(signInView({ done(told) { who = told; first = false; go(); } }), "sign-in");
}

function show(view, key) {
  shown?.close?.();
  shown = view;
  shownKey = key;
  document.body.classList.remove("covered");
  document.title = view.title ? `${view.title} · Centuria` : "Centuria";
  main.replaceChildren(view.node);
  window.scrollTo(0, 0);
  const target = view.focus || main.querySelector("h1");
  if (target && (!first || view.focus)) { if (!target.hasAttribute("tabindex") && target.tagName === "H1") target.tabIndex = -1; target.focus({ preventScroll: true }); }
  first = false;
}

function go() {
  if (who === null) return;
  const hash = location.hash;
  for (const [pattern, place, view] of PLACES) {
    const found = pattern.exec(hash);
    if (!found) continue;
    let parts;
    try {
      parts = found.slice(1).map(part => part === undefined ? undefined : decodeURIComponent(part));
    } catch { break; }
    const key = `${place}/${view === runsView ? "" : parts[0] ?? place}`;
    showBar(place);
    if (key === shownKey && shown.moved) { shown.moved(parts); return; }
    if (place === "keys" && !who.key.admin) break;
    show(view({ parts, who, retitle: title => { document.title = `${title} · Centuria`; } }), key);
    return;
  }
  showBar("");
  show({ title: "Not found", node: el("div", { class: "empty" }, el("h1", {}, "There is nothing here"), el("p", {}, "The address may be mistyped, or for another key."), el("a", { class: "button", href: "#/runs" }, "See the runs")) }, "lost");
}

async function begin() {
  try {
    who = await session();
  } catch (error) {
    const again = button("Try again", begin, { class: "main" });
    show({ title: "Not reachable", node: el("div", { class: "empty" }, dots(5), el("h1", {}, "The gateway does not answer"), el("p", {}, error.message), again) }, "down");
    return;
  }
  if (who.signed_in) go();
  else askToSignIn();
}

whenSignedOut(() => { if (who !== null) { announce("Your session is over. Sign in again.", { bad: true }); askToSignIn(); } });
addEventListener("hashchange", go);
document.querySelector(".skip").addEventListener("click", event => { event.preventDefault(); main.focus(); });
begin();
