// Round steps for axes of time.

const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400];

/** Moments from `from` to `to` (seconds), about `count` of them, at round steps. */
export function ticks(from, to, count) {
  const rough = (to - from) / Math.max(1, count);
  const step = STEPS.find(one => one >= rough) || Math.ceil(rough / 86400) * 86400;
  const found = [];
  for (let index = Math.ceil(from / step); index * step <= to && found.length < 200; index++) found.push(index * step);
  return found;
}
