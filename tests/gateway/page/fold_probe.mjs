// Folds lines of events with the page's own fold, and tells what it came to at each of the given numbers of facts.
import { readFileSync } from "node:fs";

const [script, lines, ...cuts] = process.argv.slice(2);
const { Fold, act, doingOf } = await import(script);
const { KINDS } = await import(new URL("spans.js", script));
const fold = new Fold(), wanted = new Set(cuts.map(Number)), told = {};
const row = task => [task.state, task.status, task.turn, task.steps, task.tools, task.cost, task.held, task.slot, task.priority, doingOf(task), act(task)];

for (const line of readFileSync(lines, "utf8").split("\n").filter(Boolean)) {
  const fact = JSON.parse(line);
  if (!fold.take(fact) || !wanted.has(fact.seq)) continue;
  told[fact.seq] = structuredClone({
    status: fold.status, phase: fold.phase, census: fold.census, states: fold.states, paused: [...fold.paused].map(String).sort(),
    money: [fold.spent, fold.reserved, fold.held, fold.cap], tokens: [fold.tokensIn, fold.cached, fold.tokensOut],
    slots: Object.fromEntries(fold.slots),
    resources: Object.fromEntries([...fold.resources].map(([name, one]) => [name, [one.limit, one.inUse, one.waiting, one.granted, one.rejected]])),
    tasks: Object.fromEntries([...fold.tasks].map(([id, task]) => [id, row(task)])),
    notices: fold.notices.length, servers: Object.fromEntries([...fold.servers].map(([slug, one]) => [slug, one.up])),
  });
}
const spans = fold.spans, word = number => spans.words[number];
told.spans = Array.from({ length: spans.count }, (_, i) => [spans.slot[i], word(spans.task[i]), KINDS[spans.kind[i]], word(spans.name[i]), word(spans.state[i])]);
process.stdout.write(JSON.stringify(told));
