// The timeline's spans in columns: what each slot did, from when to when.

export const KINDS = ["agent", "model", "tool", "wait"];
const MOST = 250_000;

export class Spans {
  constructor() {
    this.count = 0;
    this.leftOut = 0;
    this.start = new Float64Array(1024);
    this.end = new Float64Array(1024);
    this.slot = new Int32Array(1024);
    this.task = new Int32Array(1024);
    this.kind = new Uint8Array(1024);
    this.name = new Int32Array(1024);
    this.state = new Int32Array(1024);
    this.words = [];
    this.numbers = new Map();
    /** Spans of each slot, in the order in which they began; -1: of no slot. */
    this.lanes = new Map();
    this.slots = 0;
  }

  word(text) {
    let number = this.numbers.get(text);
    if (number === undefined) {
      number = this.words.push(text) - 1;
      this.numbers.set(text, number);
    }
    return number;
  }

  /** Returns the span's number, -1 where there is no more room. */
  begin(slot, task, kind, name, at) {
    if (this.count >= MOST) { this.leftOut += 1; return -1; }
    if (this.count === this.start.length) this.grow();
    const index = this.count++;
    this.start[index] = at;
    this.end[index] = NaN;
    this.slot[index] = slot;
    this.task[index] = this.word(task);
    this.kind[index] = KINDS.indexOf(kind);
    this.name[index] = this.word(name);
    this.state[index] = this.word("");
    let lane = this.lanes.get(slot);
    if (!lane) this.lanes.set(slot, lane = []);
    lane.push(index);
    if (slot >= this.slots) this.slots = slot + 1;
    return index;
  }

  finish(index, at, state) {
    if (index < 0 || !Number.isNaN(this.end[index])) return;
    this.end[index] = Math.max(at, this.start[index]);
    this.state[index] = this.word(state);
  }

  grow() {
    for (const name of ["start", "end", "slot", "task", "kind", "name", "state"]) {
      const more = new this[name].constructor(this[name].length * 2);
      more.set(this[name]);
      this[name] = more;
    }
  }
}

/** Recent values, for percentiles. */
export class Sample {
  constructor() { this.values = []; this.count = 0; this.sorted = null; }

  add(value) {
    if (this.values.length < 600) this.values.push(value);
    else this.values[this.count % 600] = value;
    this.count += 1;
    this.sorted = null;
  }

  at(share) {
    if (!this.count) return null;
    this.sorted ??= [...this.values].sort((a, b) => a - b);
    return this.sorted[Math.min(this.sorted.length - 1, Math.floor(share * this.sorted.length))];
  }
}
