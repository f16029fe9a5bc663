// Colours for canvases, read from the style sheet, again when light and dark change.

const NAMES = ["ink", "soft", "line", "lane", "card", "accent", "model-mark", "tool-mark", "wait-mark", "money-mark", "idle-mark", "free",
  "ok-mark", "failed-mark", "timeout-mark", "cancelled-mark", "budget-mark", "blocked-mark", "skipped-mark", "waiting-mark", "ready-mark", "running-mark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
let found = null;
const listeners = new Set();

export function colours() {
  if (found === null) {
    const style = getComputedStyle(document.documentElement);
    found = Object.fromEntries(NAMES.map(name => [name.replace("-mark", ""), style.getPropertyValue("--" + name).trim()]));
  }
  return found;
}

/** Call `work` when the colours change. Returns how to stop that. */
export function whenRecoloured(work) {
  listeners.add(work);
  return () => listeners.delete(work);
}

dark.addEventListener("change", () => { found = null; for (const work of listeners) work(); });

/** A canvas's context at the screen's own resolution, empty. */
export function sized(canvas, wide, high) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(wide * ratio)), height = Math.max(1, Math.round(high * ratio));
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  if (canvas.style.height !== high + "px") canvas.style.height = high + "px";
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, wide, high);
  context.font = "11px ui-sans-serif, system-ui, sans-serif";
  return context;
}
