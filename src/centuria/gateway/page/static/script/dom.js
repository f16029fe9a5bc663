// Elements, and what is said to the user. Text from anywhere goes in as text nodes, never as markup.

export function el(name, attributes, ...children) {
  const node = document.createElement(name);
  set(node, attributes);
  append(node, children);
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, String(value));
  append(node, children);
  return node;
}

function set(node, attributes) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "style") Object.assign(node.style, value);
    else if (key === "dataset") Object.assign(node.dataset, value);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "value") node.value = value;
    else node.setAttribute(key, value === true ? "" : String(value));
  }
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false && child !== "") node.append(child);
  }
}

/** Text, changed only where it differs: the page is not laid out again for nothing. */
export function say(node, text) {
  const words = String(text);
  if (node.textContent !== words) node.textContent = words;
}

export function mark(node, name, value) {
  const words = value === null || value === undefined || value === false ? null : String(value);
  if (node.getAttribute(name) === words) return;
  if (words === null) node.removeAttribute(name);
  else node.setAttribute(name, words);
}

/** What has just happened, seen for some seconds and read aloud. */
export function announce(text, { bad = false } = {}) {
  const line = el("p", { class: bad ? "bad" : null }, text);
  const place = document.getElementById("said");
  while (place.children.length >= 3) place.firstChild.remove();
  place.append(line);
  if (bad) document.getElementById("alarm").textContent = text;
  setTimeout(() => line.remove(), bad ? 9000 : 4000);
}

export function button(words, onclick, more = {}) {
  const { class: extra, ...attributes } = more;
  return el("button", { type: "button", class: "button " + (extra || ""), onclick, ...attributes }, words);
}

/** A button that works: it cannot be pressed twice, and what goes wrong is said. */
export function doing(words, work, more = {}) {
  const node = button(words, async () => {
    if (node.getAttribute("aria-disabled") === "true") return;
    node.setAttribute("aria-disabled", "true");
    try {
      await work();
    } catch (error) {
      announce(error.message, { bad: true });
    } finally {
      node.removeAttribute("aria-disabled");
    }
  }, more);
  return node;
}

/** One of a few: buttons of which one is pressed. */
export function choice(label, options, chosen, onchoose) {
  const nodes = options.map(([value, words]) => {
    const node = el("button", { type: "button", "aria-pressed": String(value === chosen) }, words);
    node.addEventListener("click", () => { choose(value); onchoose(value); });
    return node;
  });
  function choose(value) {
    options.forEach(([one], index) => mark(nodes[index], "aria-pressed", String(one === value)));
  }
  return { node: el("div", { class: "choice", role: "group", "aria-label": label }, nodes), choose };
}

/** Ask before something that cannot be undone. Resolves to true or false; Escape is no. */
export function confirm(title, text, yes, no = "Keep it") {
  return new Promise(resolve => {
    const answer = value => { dialog.close(); resolve(value); };
    const dialog = el("dialog", { "aria-labelledby": "confirm-title" },
      el("h2", { id: "confirm-title" }, title), el("p", { class: "soft" }, text),
      el("div", { class: "actions" },
        button(no, () => answer(false), { autofocus: true }),
        button(yes, () => answer(true), { class: "bad" })));
    dialog.addEventListener("cancel", () => resolve(false));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function chip(status, words = status) {
  return el("span", { class: "chip", "data-status": status }, words);
}

/** A bar of parts. `update` takes [amount, colour] pairs and their total. */
export function meter(label) {
  const node = el("div", { class: "meter", role: "img", "aria-label": label });
  function update(parts, total, words) {
    while (node.children.length < parts.length) node.append(el("i"));
    while (node.children.length > parts.length) node.lastChild.remove();
    parts.forEach(([amount, colour], index) => {
      const share = total > 0 ? Math.max(0, Math.min(100, 100 * amount / total)) : 0;
      const style = node.children[index].style;
      const width = share > 0 && share < 0.6 ? "3px" : share.toFixed(2) + "%";
      if (style.width !== width) style.width = width;
      const background = `var(--${colour})`;
      if (style.background !== background) style.background = background;
      style.display = share > 0 ? "" : "none";
    });
    if (words) mark(node, "aria-label", words);
  }
  return { node, update };
}

/** The dots of the house, some of them lit. */
export function dots(across, lit = []) {
  const step = 100 / across;
  return svg("svg", { viewBox: "0 0 100 100", "aria-hidden": "true" }, Array.from({ length: across * across }, (_, index) =>
    svg("circle", { cx: (index % across + 0.5) * step, cy: (Math.floor(index / across) + 0.5) * step, r: step * 0.3, class: lit.includes(index) ? "lit" : "" })));
}

/** The width of a node, as it was laid out last: reading it costs no layout. `onchange` is told when it has changed. */
export function widthOf(node, onchange = () => {}) {
  let wide = 0;
  const observer = new ResizeObserver(entries => {
    const now = entries.at(-1).contentRect.width;
    if (now !== wide) { wide = now; onchange(); }
  });
  observer.observe(node);
  return { get now() { return wide; }, end: () => observer.disconnect() };
}

/**
 * Run `work` on the next frame, once, however often it is asked for; `pause` milliseconds apart, and further where the
 * work takes long: most of the time is the browser's own.
 */
export function paced(work, pause = 0) {
  let asked = false, next = -Infinity, ended = false;
  function frame(now) {
    if (ended) return;
    if (now < next) { requestAnimationFrame(frame); return; }
    asked = false;
    const began = performance.now();
    work(now);
    next = now + Math.max(pause, SHARE * (performance.now() - began));
  }
  const ask = () => { if (!asked && !ended) { asked = true; requestAnimationFrame(frame); } };
  ask.end = () => { ended = true; };
  return ask;
}

/** How much longer it rests than it works. */
const SHARE = 5;
