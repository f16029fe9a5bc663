// Numbers, money and times as people read them.

const whole = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const dayOnly = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", timeZone: "UTC" });

export const PICO = 1e12;

export const num = value => whole.format(value);

export const counted = (n, one, many = one + "s") => `${num(n)} ${n === 1 ? one : many}`;

/** Dollars, with as many digits as the amount is worth. */
export function usd(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0) return "−" + usd(-value);
  if (value === 0 || value >= 0.995) return "$" + value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  if (value >= 0.01) return "$" + value.toFixed(3);
  return value >= 0.000001 ? "$" + value.toFixed(6) : "<$0.000001";
}

/** Dollars of a cap: no cents where there are none. */
export const cap = value => value !== null && value !== undefined && Number.isInteger(value) ? "$" + num(value) : usd(value);

export const pico = value => usd(value === null || value === undefined ? value : value / PICO);

/** Seconds as a duration. */
export function sec(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.9995) return Math.round(value * 1000) + " ms";
  if (value < 9.95) return value.toFixed(1) + " s";
  const all = Math.round(value);
  if (all < 60) return all + " s";
  if (all < 3600) return `${Math.floor(all / 60)} min ${String(all % 60).padStart(2, "0")} s`;
  if (all < 86400) return `${Math.floor(all / 3600)} h ${String(Math.floor(all % 3600 / 60)).padStart(2, "0")} min`;
  return counted(Math.floor(all / 86400), "day");
}

/** A running clock: 0:07, 12:30, 1:02:03. */
export function watch(value) {
  const all = Math.max(0, Math.floor(value)), hours = Math.floor(all / 3600);
  const minutes = Math.floor(all % 3600 / 60), seconds = String(all % 60).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${seconds}` : `${minutes}:${seconds}`;
}

export function short(value) {
  for (const [size, sign] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return (value / size >= 99.95 ? Math.round(value / size) : (value / size).toFixed(1)) + sign;
  }
  return String(Math.round(value));
}

export function ago(at, now = Date.now() / 1000) {
  const gone = now - at;
  if (gone < 45) return "just now";
  if (gone < 3600) return Math.max(1, Math.round(gone / 60)) + " min ago";
  if (gone < 86400) return Math.round(gone / 3600) + " h ago";
  if (gone < 30 * 86400) return counted(Math.round(gone / 86400), "day") + " ago";
  return when(at);
}

export const when = at => at ? clock.format(new Date(at * 1000)) : "–";

export const day = text => dayOnly.format(new Date(text + "T00:00:00Z"));

export const clip = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;
