// A run's facts, folded to what the page shows. The same fold as the program's own (core/progress.py), in short.

import { Sample, Spans } from "./spans.js";

export const STATUSES = ["ok", "failed", "timeout", "cancelled", "budget", "blocked", "skipped"];
/** What an agent does: its sign, in words, and the colour of its mark. */
export const ACTS = {
  M: ["model", "model-mark"], T: ["tool", "tool-mark"], q: ["queued", "wait-mark"], $: ["waits for money", "money-mark"],
  "-": ["between calls", "idle-mark"], "·": ["free", "free"],
};
const NOTICES = 200;
/** A scheduler's clock counts from the machine's start; times since 1970 are larger than this. */
const WALL = 1e9;
const RATE_SECONDS = 10;

const newTask = id => ({
  id, label: "", index: -1, needs: [], every: false, parent: null, depth: 0, priority: 5, state: "waiting", status: null, cause: "",
  epoch: 0, turn: 0, steps: 0, tools: 0, cost: 0, held: 0, prompt: 0, output: 0, slot: null, startedAt: null, endedAt: null,
  calls: new Map(), queued: new Map(), owing: 0, atGate: false, listed: false,
});

export class Fold {
  constructor() {
    Object.assign(this, {
      seq: 0, at: 0, run: "", name: "", model: "", rehearsal: false, replay: false, status: "", cause: "", phase: "",
      agents: 0, startedAt: null, endedAt: null, active: 0, since: null, resumes: 0,
      spent: 0, reserved: 0, held: 0, cap: null, tokensIn: 0, tokensOut: 0, cached: 0, calls: 0, lost: 0,
    });
    this.tasks = new Map();
    this.order = [];
    this.others = new Map();
    this.slots = new Map();
    this.resources = new Map();
    this.tickets = new Map();
    this.holds = new Map();
    this.owing = new Map();
    this.servers = new Map();
    this.gates = new Map();
    this.notices = [];
    this.paused = new Set();
    this.files = [];
    this.census = Object.fromEntries(STATUSES.map(status => [status, 0]));
    this.states = { waiting: 0, ready: 0, running: 0, ended: 0 };
    this.durations = new Sample();
    this.modelTimes = new Sample();
    this.rate = [];
    this.spans = new Spans();
    /** What was spent by when: [seconds since 1970, dollars in pico]. */
    this.spending = [];
    /** Counts every change of the graph itself, so that it is laid out anew. */
    this.shape = 0;
  }

  take(fact) {
    if (typeof fact.seq !== "number" || fact.seq <= this.seq) return false;
    this.seq = fact.seq;
    if (fact.at > WALL) this.at = fact.at;
    const fold = FOLDS[fact.kind];
    if (fold) fold(this, fact, this.at);
    return true;
  }

  row(id) {
    let row = this.tasks.get(id) || this.others.get(id);
    if (!row) this.others.set(id, row = newTask(id));
    return row;
  }

  find(id) { return this.tasks.get(id) || this.others.get(id); }

  move(row, state) {
    if (row.listed) { this.states[row.state] -= 1; this.states[state] += 1; }
    row.state = state;
  }

  count(row, sign) { if (row.listed && row.status) this.census[row.status] = (this.census[row.status] || 0) + sign; }

  resource(name) {
    let row = this.resources.get(name);
    if (!row) {
      row = { name, limit: 0, inUse: 0, waiting: 0, peak: 0, granted: 0, rejected: 0, waits: new Sample(), reason: "" };
      this.resources.set(name, row);
    }
    return row;
  }

  wait(hold, by) {
    const row = this.find(this.owing.get(hold));
    if (by < 0) this.owing.delete(hold);
    if (row) row.owing = Math.max(0, row.owing + by);
  }

  /** End a reservation. Returns it, if it was one. */
  release(hold) {
    if (this.owing.has(hold)) this.wait(hold, -1);
    const found = this.holds.get(hold);
    if (found) { this.reserved -= found.amount; this.holds.delete(hold); }
    return found;
  }

  spend() {
    const last = this.spending.at(-1);
    if (last && this.at - last[0] < 0.25) last[1] = this.spent;
    else this.spending.push([this.at, this.spent]);
    if (this.spending.length > 4000) this.spending = this.spending.filter((_, index) => index % 2 === 0 || index > 3990);
  }

  // -- reading ------------------------------------------------------------------------------------------------------

  get working() { return this.status === "running"; }
  get total() { return this.order.length; }
  get ended() { return this.states.ended; }
  get pausedWhole() { return this.paused.has(null); }

  elapsed(now) { return this.active + (this.since === null ? 0 : Math.max(0, now - this.since)); }

  tokensPerSecond(now) {
    const first = Math.floor(now) - RATE_SECONDS;
    const tokens = this.rate.reduce((sum, [second, count]) => second > first ? sum + count : sum, 0);
    return tokens / Math.max(1, Math.min(RATE_SECONDS, this.elapsed(now)));
  }

  /** Seconds until the last task ends, by how fast tasks ended so far; null while nobody can tell. */
  eta(now) {
    const left = this.total - this.ended;
    if (!this.working || !left || this.durations.count < 3 || this.startedAt === null) return null;
    return left * this.elapsed(now) / this.durations.count;
  }

  /** Whether this task, or one above it, is paused. */
  holdsBack(id) {
    for (let row = this.tasks.get(id), hops = 0; row && hops < 50; row = row.parent && this.tasks.get(row.parent), hops++) {
      if (this.paused.has(row.id)) return true;
    }
    return this.pausedWhole;
  }
}

// -- what each fact does ----------------------------------------------------------------------------------------------

const FOLDS = {
  run_started(fold, e, at) {
    Object.assign(fold, { run: e.run, name: e.name, model: e.model, rehearsal: e.rehearsal, replay: e.replay, cap: e.budget,
      agents: e.agents, status: "running", startedAt: at, since: at });
    fold.spend();
  },
  run_resumed(fold, e, at) {
    breakOff(fold);
    Object.assign(fold, { cap: e.budget, status: "running", cause: "", endedAt: null, since: at, resumes: fold.resumes + 1, phase: "" });
    fold.notices = [];
  },
  phase_started(fold, e) { fold.phase = e.phase; },
  run_ended(fold, e, at) {
    if (fold.since !== null) fold.active += Math.max(0, at - fold.since);
    Object.assign(fold, { status: e.status, cause: e.cause, endedAt: at, since: null });
    fold.spend();
  },
  notice(fold, e, at) {
    fold.notices.push({ at, level: e.level, text: e.text });
    if (fold.notices.length > NOTICES) fold.notices.shift();
  },
  file_written(fold, e) { if (fold.files.length < 2000) fold.files.push(e.path); },

  task_added(fold, e) {
    if (fold.tasks.has(e.task)) return;
    const row = fold.others.get(e.task) || newTask(e.task);
    fold.others.delete(e.task);
    Object.assign(row, { label: e.label === e.task ? "" : e.label, index: e.index, needs: e.needs || [], every: e.every, parent: e.parent,
      depth: e.depth, priority: e.priority, listed: true });
    fold.tasks.set(e.task, row);
    fold.order.push(row);
    fold.states[row.state] += 1;
    fold.shape += 1;
  },
  task_ready(fold, e) { const row = fold.row(e.task); if (row.state !== "ended") fold.move(row, "ready"); },
  task_started(fold, e, at) {
    const row = fold.row(e.task);
    fold.count(row, -1);
    if (row.epoch !== e.epoch) Object.assign(row, { epoch: e.epoch, turn: 0 });
    Object.assign(row, { status: null, cause: "", startedAt: at, endedAt: null });
    fold.move(row, "running");
  },
  task_ended(fold, e, at) {
    const row = fold.row(e.task), outcome = e.outcome || {};
    fold.count(row, -1);
    Object.assign(row, { status: outcome.status, cause: outcome.cause || "", steps: outcome.steps || 0, cost: outcome.cost || 0, held: outcome.held || 0, endedAt: at });
    if (row.state === "running" && row.startedAt !== null && row.listed) fold.durations.add(at - row.startedAt);
    fold.move(row, "ended");
    fold.count(row, 1);
  },
  task_reset(fold, e) {
    const row = fold.row(e.task);
    fold.count(row, -1);
    if (row.epoch !== e.epoch) Object.assign(row, { epoch: e.epoch, turn: 0 });
    Object.assign(row, { status: null, cause: "", startedAt: null, endedAt: null });
    fold.move(row, "waiting");
  },
  task_paused(fold, e) { if (e.paused) fold.paused.add(e.task ?? null); else fold.paused.delete(e.task ?? null); },
  priority_set(fold, e) { fold.row(e.task).priority = e.priority; },

  limit_set(fold, e) {
    const row = fold.resource(e.resource);
    row.first ??= e.limit;
    Object.assign(row, { limit: e.limit, reason: e.reason });
  },
  slot_queued(fold, e) {
    if (fold.tickets.has(e.ticket)) return;
    fold.tickets.set(e.ticket, { resource: e.resource, agent: e.agent, granted: false, slot: -1, span: -1 });
    fold.resource(e.resource).waiting += 1;
    fold.find(e.agent)?.queued.set(e.ticket, e.resource);
  },
  slot_granted(fold, e, at) {
    const resource = fold.resource(e.resource);
    let ticket = fold.tickets.get(e.ticket);
    if (!ticket) fold.tickets.set(e.ticket, ticket = { resource: e.resource, agent: e.agent, granted: false, slot: -1, span: -1 });
    else if (ticket.granted) return;
    else unqueue(fold, e.ticket, ticket);
    ticket.granted = true;
    ticket.slot = e.slot;
    had(resource, e.waited);
    const row = fold.find(e.agent);
    if (row) row.atGate = e.resource.startsWith("model:");
    if (e.resource === "agents") {
      fold.slots.set(e.slot, e.agent);
      ticket.span = fold.spans.begin(e.slot, e.agent, "agent", "", at);
      if (row) row.slot = e.slot;
    } else if (e.waited > 0) {
      fold.spans.finish(fold.spans.begin(row?.slot ?? -1, e.agent, "wait", e.resource, at - e.waited), at, "granted");
    }
  },
  slot_rejected(fold, e) {
    fold.resource(e.resource).rejected += 1;
    const ticket = fold.tickets.get(e.ticket);
    if (ticket && !ticket.granted) { fold.tickets.delete(e.ticket); unqueue(fold, e.ticket, ticket); }
  },
  slot_left(fold, e, at) {
    const ticket = fold.tickets.get(e.ticket);
    if (!ticket) return;
    fold.tickets.delete(e.ticket);
    if (!ticket.granted) { unqueue(fold, e.ticket, ticket); return; }
    fold.resource(ticket.resource).inUse -= 1;
    const row = fold.find(ticket.agent);
    if (row) row.atGate = false;
    if (ticket.resource !== "agents") return;
    fold.spans.finish(ticket.span, at, row?.status || "");
    if (fold.slots.get(ticket.slot) === ticket.agent) fold.slots.delete(ticket.slot);
    if (row) row.slot = null;
  },

  cap_set(fold, e) { if (e.parent === null) fold.cap = e.cap; },
  money_queued(fold, e) {
    if (fold.owing.has(e.hold)) return;
    const row = fold.find(e.node.slice(e.node.indexOf(":") + 1)) || fold.find(e.node);
    fold.owing.set(e.hold, row ? row.id : "");
    if (row) row.owing += 1;
  },
  money_reserved(fold, e) {
    if (fold.owing.has(e.hold)) fold.wait(e.hold, -1);
    if (!fold.holds.has(e.hold)) { fold.holds.set(e.hold, { amount: e.amount, task: "" }); fold.reserved += e.amount; }
  },
  money_refused(fold, e) { if (fold.owing.has(e.hold)) fold.wait(e.hold, -1); },
  money_settled(fold, e) { if (fold.release(e.hold)) { fold.spent += e.cost; fold.spend(); } },
  money_held(fold, e) {
    const hold = fold.release(e.hold);
    if (!hold) return;
    fold.held += hold.amount;
    const row = fold.find(hold.task);
    if (row && row.state !== "ended") row.held += hold.amount;
  },
  money_released(fold, e) { fold.release(e.hold); },

  call_opened(fold, e, at) {
    const row = fold.row(e.key.task), id = callId(e.key), before = row.calls.get(id);
    row.turn = Math.max(row.turn, e.key.turn + 1);
    if (e.call === "tool") row.tools += 1; else { row.atGate = false; fold.calls += 1; }
    if (before) { fold.spans.finish(before.span, at, "superseded"); gaveBack(fold, before); }
    const span = fold.spans.begin(row.slot ?? -1, row.id, e.call, e.name, at), slots = e.slots || [];
    row.calls.set(id, { call: e.call, name: e.name, attempt: e.attempt, at, span, slots });
    for (const name of slots) had(fold.resource(name), 0);
    const hold = fold.holds.get(e.hold);
    if (hold) hold.task = row.id;
  },
  call_closed(fold, e, at) {
    const row = fold.row(e.key.task), id = callId(e.key), open = row.calls.get(id);
    if (open && open.attempt === e.attempt) { row.calls.delete(id); fold.spans.finish(open.span, at, e.end); gaveBack(fold, open); }
    if (row.state !== "ended") row.cost += e.cost || 0;
    if (e.key.position > 0) return;
    if (e.end === "done") fold.modelTimes.add(e.total_s); else fold.lost += 1;
    if (!e.usage) return;
    fold.tokensIn += e.usage.prompt; fold.tokensOut += e.usage.output; fold.cached += e.usage.cached;
    row.prompt += e.usage.prompt; row.output += e.usage.output;
    const second = Math.floor(at), last = fold.rate.at(-1);
    if (last && last[0] === second) last[1] += e.usage.output;
    else { fold.rate.push([second, e.usage.output]); if (fold.rate.length > RATE_SECONDS + 1) fold.rate.shift(); }
  },

  server_up(fold, e) { fold.servers.set(e.slug, { slug: e.slug, server: e.server, up: true, tools: (e.tools || []).length, reason: "" }); },
  server_down(fold, e) { fold.servers.set(e.slug, { slug: e.slug, server: e.server, up: false, tools: 0, reason: e.reason }); },
  gate_closed(fold, e, at) { fold.gates.set(e.model, { reason: e.reason, until: at + Math.max(0, e.until - e.clock) }); },
  gate_opened(fold, e) { fold.gates.delete(e.model); },
  breaker_opened(fold, e) { fold.gates.set(e.model, { reason: e.cause, until: Infinity }); },
  breaker_closed(fold, e) { fold.gates.delete(e.model); },
};

const callId = key => `${key.task}/${key.epoch}/${key.turn}/${key.position}`;

/** A slot is taken. A call tells itself of those that it had without a wait, and has them until it ends. */
function had(resource, waited) {
  resource.inUse += 1;
  resource.granted += 1;
  resource.peak = Math.max(resource.peak, resource.inUse);
  resource.waits.add(waited);
}

function gaveBack(fold, call) { for (const name of call.slots) fold.resource(name).inUse -= 1; }

function unqueue(fold, number, ticket) {
  fold.resource(ticket.resource).waiting -= 1;
  fold.find(ticket.agent)?.queued.delete(number);
}

/** The process that worked until now is gone, and its tickets and open calls with it. */
function breakOff(fold) {
  if (fold.since !== null) fold.active += Math.max(0, fold.at - fold.since);
  for (const row of fold.resources.values()) Object.assign(row, { inUse: 0, waiting: 0 });
  for (const ticket of fold.tickets.values()) fold.spans.finish(ticket.span, fold.at, "interrupted");
  for (const map of [fold.tickets, fold.slots, fold.owing, fold.paused, fold.gates]) map.clear();
  for (const row of [...fold.tasks.values(), ...fold.others.values()]) {
    for (const call of row.calls.values()) fold.spans.finish(call.span, fold.at, "interrupted");
    row.calls.clear();
    row.queued.clear();
    Object.assign(row, { owing: 0, slot: null, atGate: false });
    if (row.state === "ready" || row.state === "running") { row.startedAt = null; fold.move(row, "waiting"); }
  }
}

// -- words ------------------------------------------------------------------------------------------------------------

/** The sign for what an agent does now. */
export function act(row) {
  if (!row) return "-";
  for (const call of row.calls.values()) return call.call === "tool" ? "T" : "M";
  if (row.queued.size || row.atGate) return "q";
  return row.owing ? "$" : "-";
}

/** The same in words. */
export function doingOf(row) {
  if (!row) return "";
  if (row.state === "ended") return row.status || "ended";
  if (row.calls.size) {
    const tools = [...row.calls.values()].filter(call => call.call === "tool");
    if (!tools.length) return "model";
    return tools.length === 1 ? bareTool(tools[0].name) : `${tools.length} tools`;
  }
  if (row.queued.size) return "queued for " + shownResource([...row.queued.values()].at(-1));
  if (row.atGate) return "at the model's gate";
  if (row.owing) return "waits for money";
  return row.state === "running" ? "between calls" : row.state;
}

const bareTool = name => name.includes("__") ? name.slice(name.indexOf("__") + 2) : name;

export function shownResource(resource) {
  const colon = resource.indexOf(":"), kind = resource.slice(0, colon), name = resource.slice(colon + 1);
  if (kind === "server") return `${name} (server)`;
  if (kind === "lease") return `${name} (sessions)`;
  return kind === "model" ? name : bareTool(name);
}
