// The four figures above a run: tasks, money, tokens, time.

import { el, mark, meter, say } from "../dom.js";
import { STATUSES } from "../fold.js";
import { PICO, cap, num, pico, sec, short, usd, watch } from "../format.js";

export function tiles() {
  const make = (title, label) => {
    const big = el("b", {}, "–"), words = el("p"), bar = label ? meter(label) : null;
    const head = el("h2", {}, title);
    return { node: el("section", { class: "tile" }, head, big, words, bar && bar.node), head, big, words, bar };
  };
  const tasks = make("Tasks", "Tasks by outcome"), money = make("Spent", "Money"), tokens = make("Tokens"), time = make("Time");
  const node = el("div", { class: "tiles" }, tasks.node, money.node, tokens.node, time.node);

  function big(part, words, small = "") {
    if (!part.small) { part.big.replaceChildren(el("span"), part.small = el("small")); }
    say(part.big.firstChild, words);
    say(part.small, small ? " " + small : "");
  }

  function update(fold, now) {
    big(tasks, num(fold.ended), `of ${num(fold.total)}`);
    const bad = STATUSES.filter(status => status !== "ok" && fold.census[status]).map(status => `${num(fold.census[status])} ${status}`);
    say(tasks.words, bad.length ? bad.join(", ") : fold.states.running ? `${num(fold.states.running)} at work` : fold.ended ? "all ok" : "none has begun");
    tasks.bar.update([...STATUSES.map(status => [fold.census[status], status + "-mark"]), [fold.states.running, "running-mark"]], fold.total || 1,
      `${fold.census.ok} ok, ${fold.ended - fold.census.ok} not ok, ${fold.total - fold.ended} to come`);
    say(money.head, fold.rehearsal ? "Would cost" : "Spent");
    big(money, pico(fold.spent), fold.cap === null ? "no cap" : `of ${cap(fold.cap / PICO)}`);
    const more = [fold.reserved > 0 ? `${pico(fold.reserved)} reserved` : "", fold.held > 0 ? `${pico(fold.held)} held` : ""].filter(Boolean).join(", ");
    say(money.words, more || (fold.cap === null || !fold.spent ? "nothing reserved" : `${usd((fold.cap - fold.spent) / PICO)} left`));
    money.bar.node.style.visibility = fold.cap === null ? "hidden" : "";
    money.bar.update([[fold.spent, "model-mark"], [fold.held, "money-mark"], [fold.reserved, "ready-mark"]], fold.cap || 1);
    big(tokens, short(fold.tokensIn + fold.tokensOut), fold.working ? `${short(fold.tokensPerSecond(now))}/s` : "");
    say(tokens.words, `${short(fold.tokensIn)} in, ${short(fold.tokensOut)} out` + (fold.cached ? `, ${Math.round(100 * fold.cached / fold.tokensIn)} % cached` : ""));
    big(time, watch(fold.elapsed(now)));
    const left = fold.eta(now), p50 = fold.modelTimes.at(0.5);
    say(time.words, left ? `about ${sec(Math.max(1, left))} left` : p50 !== null ? `model p50 ${sec(p50)}, p99 ${sec(fold.modelTimes.at(0.99))}` : " ");
    mark(node, "aria-busy", fold.seq ? null : "true");
  }
  return { node, update };
}
