// What the gateway tells of a swarm, in the page's own words. Dollars, seconds since 1970.

const OVER = new Set(["ok", "partial", "failed", "budget", "cancelled"]);

/** One swarm as `GET /v1/agents/swarm` lists it. */
export function facts(told) {
  const tasks = Array.isArray(told.agents) ? told.agents.length : told.tasks || 0;
  return {
    id: told.id, name: told.name || told.id, status: told.status || "unknown", cause: told.cause || "", rehearsal: told.rehearsal === true, model: told.model || "",
    owner: told.key || "", working: !OVER.has(told.status), tasks, ok: told.ok || 0, ended: told.ended ?? (OVER.has(told.status) ? tasks : told.ok || 0),
    spent: told.cost_usd || 0, held: told.held_usd || 0, cap: told.budget_usd ?? null,
    madeAt: told.created_at || 0, endedAt: told.ended_at ?? null,
  };
}
