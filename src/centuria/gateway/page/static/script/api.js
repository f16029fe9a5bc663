// Requests to the gateway. The key is in a cookie that no script can read; what changes something shows the session's token.

let csrf = null;
let onGone = () => {};

export class ApiError extends Error {
  constructor(status, { message, type, code, param }) {
    super(message);
    Object.assign(this, { status, type, code, param });
  }
}

/** What to do when the session is over. */
export const whenSignedOut = work => { onGone = work; };

export async function session() {
  const told = await request("GET", "/session");
  csrf = told.csrf_token || null;
  return told;
}

export async function signIn(key) {
  const told = await request("POST", "/session", { body: { key }, quiet: true });
  csrf = told.csrf_token || null;
  return told;
}

export async function signOut() {
  await request("DELETE", "/session");
  csrf = null;
}

export const get = (path, more) => request("GET", path, more);
export const post = (path, body = {}) => request("POST", path, { body });

export function headers(more = {}) {
  return csrf === null ? more : { ...more, "x-csrf-token": csrf };
}

async function request(method, path, { body, signal, quiet = false } = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      method, signal, credentials: "same-origin", redirect: "error",
      headers: headers(body === undefined ? {} : { "content-type": "application/json" }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "The gateway cannot be reached.", type: "network" });
  }
  if (!answer.ok) throw await failed(answer, quiet);
  if (answer.status === 204) return null;
  return answer.json();
}

/** The error that an answer tells of. A session that is over is told to the page as well. */
export async function failed(answer, quiet = false) {
  let told = {};
  try {
    told = (await answer.json()).error || {};
  } catch { /* no JSON: the status says it all */ }
  if (answer.status === 401 && !quiet) onGone();
  return new ApiError(answer.status, { message: told.message || `The gateway answered ${answer.status}.`, ...told });
}

const part = encodeURIComponent;
export const swarmPath = (id, ...rest) => ["/v1/agents/swarm/" + part(id), ...rest.map(part)].join("/");
