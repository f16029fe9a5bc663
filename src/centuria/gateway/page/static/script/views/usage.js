// What keys used: by day, model and key.

import { get } from "../api.js";
import { choice, el, meter, say, svg } from "../dom.js";
import { cap, day, num, short, usd } from "../format.js";

const SPANS = [[7, "7 days"], [30, "30 days"], [90, "90 days"]];

export function usageView({ who }) {
  let days = 30, stopping = new AbortController();
  const body = el("div", { class: "stack" }, el("div", { class: "card" }, el("p", { class: "soft" }, "Reading …")));
  const under = el("p", { class: "under" }, who.key.admin ? "All keys of this gateway." : "Of your own key.");
  const spans = choice("How long", SPANS, days, value => { days = value; load(); });
  const node = el("div", {}, el("div", { class: "head" }, el("div", {}, el("h1", {}, "Usage"), under), el("div", { class: "actions" }, spans.node)), body);

  async function load() {
    stopping.abort();
    stopping = new AbortController();
    const dates = lastDays(days);
    try {
      const told = await get(`/v1/usage?since=${dates[0]}`, { signal: stopping.signal });
      say(under, told.all_keys ? "All keys of this gateway, days in UTC." : "Of your own key, days in UTC.");
      body.replaceChildren(...shown(told, dates));
    } catch (error) {
      if (error.name !== "AbortError") body.replaceChildren(el("p", { class: "note bad", role: "alert" }, error.message));
    }
  }
  load();
  return { title: "Usage", node, close: () => stopping.abort() };
}

function lastDays(count) {
  const today = Math.floor(Date.now() / 864e5);
  return Array.from({ length: count }, (_, back) => new Date((today - count + 1 + back) * 864e5).toISOString().slice(0, 10));
}

const newSum = () => ({ cost: 0, held: 0, requests: 0, attempts: 0, prompt: 0, cached: 0, output: 0 });

function add(sum, line) {
  sum.cost += line.cost_usd; sum.held += line.held_usd; sum.requests += line.requests; sum.attempts += line.attempts;
  sum.prompt += line.prompt_tokens; sum.cached += line.cached_tokens; sum.output += line.output_tokens;
  return sum;
}

function grouped(lines, name) {
  const found = new Map();
  for (const line of lines) found.set(line[name], add(found.get(line[name]) || newSum(), line));
  return found;
}

function shown(told, dates) {
  const lines = told.data, all = lines.reduce(add, newSum()), own = told.balance;
  const tiles = el("div", { class: "tiles" },
    tile("Spent", usd(all.cost), all.held ? `and ${usd(all.held)} held` : "in this time"),
    tile("Requests", num(all.requests), `${num(all.attempts)} attempts upstream`),
    tile("Tokens", short(all.prompt + all.output), `${short(all.prompt)} in, ${short(all.output)} out`),
    balance(own));
  const top = [tiles, ...leases(told)];
  if (!lines.length) return [...top, el("div", { class: "card" }, el("div", { class: "empty" }, el("h2", {}, "Nothing was used in this time"), el("p", {}, "Requests and swarms will be counted here by day, model and key.")))];
  const parts = [...top, el("section", { class: "card" }, el("header", {}, el("h2", {}, "By day")), bars(grouped(lines, "day"), dates)),
    el("section", { class: "card" }, el("header", {}, el("h2", {}, "By model")), table("model", grouped(lines, "model")))];
  if (told.all_keys) parts.push(el("section", { class: "card" }, el("header", {}, el("h2", {}, "By key")), table("key", grouped(lines, "key"))));
  return [...parts, el("details", { class: "card" }, el("summary", {}, el("h2", {}, "Day by day")), el("div", { style: { marginTop: "14px" } }, table("day", new Map([...grouped(lines, "day")].sort().reverse()), false)))];
}

function leases(told) {
  if (!told.held_leases.length) return [];
  const words = told.held_leases.map(line => `${told.all_keys ? `${line.key} ` : ""}${usd(line.held_usd)}`).join(", ");
  return [el("p", { class: "note" }, `Also held, for leases of gateways that ended without a word: ${words}`)];
}

function tile(title, big, words, more) {
  return el("div", { class: "tile" }, el("h2", {}, title), el("b", {}, big), el("p", {}, words), more);
}

function balance(own) {
  if (!own) return tile("Budget", "–", "no key of its own");
  if (own.budget_usd === null) return tile("Budget", "no cap", `${usd(own.spent_usd)} spent since the key was made`);
  const bar = meter("Budget");
  bar.update([[own.spent_usd, "model-mark"], [own.held_usd, "money-mark"], [own.leased_usd, "idle-mark"]], own.budget_usd,
    `${usd(own.spent_usd)} of ${usd(own.budget_usd)} spent`);
  return tile("Left of the budget", usd(own.left_usd), `of ${cap(own.budget_usd)}, ${usd(own.spent_usd)} spent`, bar.node);
}

function bars(byDay, dates) {
  const wide = 1000, high = 150, most = Math.max(...dates.map(date => { const sum = byDay.get(date); return sum ? sum.cost + sum.held : 0; }), 1e-9);
  const step = wide / dates.length, gap = Math.min(6, step * 0.25);
  const marks = dates.map((date, index) => {
    const sum = byDay.get(date) || newSum(), x = index * step + gap / 2, width = step - gap;
    const tall = high * sum.cost / most, held = high * sum.held / most;
    const words = `${day(date)}: ${usd(sum.cost)}` + (sum.held ? `, ${usd(sum.held)} held` : "") + `, ${num(sum.requests)} requests`;
    return svg("g", {}, svg("title", {}, words),
      svg("rect", { x, width, y: high - Math.max(tall, 1.5), height: Math.max(tall, 1.5), rx: Math.min(3, width / 4), class: sum.cost ? "" : "empty-day" }),
      held ? svg("rect", { x, width, y: high - tall - held, height: held, class: "held" }) : null);
  });
  const chart = svg("svg", { class: "bars", viewBox: `0 0 ${wide} ${high + 4}`, preserveAspectRatio: "none", role: "img", "aria-label": `Money by day; at most ${usd(most)} on one day. The table below has the figures.` },
    svg("line", { x1: 0, x2: wide, y1: high + 0.5, y2: high + 0.5 }), marks);
  return el("figure", {}, chart, el("figcaption", { class: "legend", style: { justifyContent: "space-between", marginTop: "6px" } },
    el("span", {}, day(dates[0])), el("span", {}, `highest day ${usd(most)}`), el("span", {}, day(dates.at(-1)))));
}

function table(name, sums, byCost = true) {
  const rows = [...sums];
  if (byCost) rows.sort((a, b) => b[1].cost - a[1].cost);
  const head = [[name], ["spent", "n"], ["held", "n"], ["requests", "n"], ["tokens in", "n"], ["cached", "n"], ["tokens out", "n"]];
  return el("table", { class: "rows fold" }, el("thead", {}, el("tr", {}, head.map(([words, kind]) => el("th", { scope: "col", class: kind }, words)))),
    el("tbody", {}, rows.map(([value, sum]) => el("tr", {},
      el("th", { scope: "row", class: "own" }, name === "day" ? day(value) : value),
      el("td", { class: "n" }, usd(sum.cost)), el("td", { class: "n", "data-label": "held" }, usd(sum.held)),
      el("td", { class: "n", "data-label": "requests" }, num(sum.requests)), el("td", { class: "n", "data-label": "in" }, short(sum.prompt)),
      el("td", { class: "n", "data-label": "cached" }, short(sum.cached)), el("td", { class: "n", "data-label": "out" }, short(sum.output))))));
}
