// The admin API: one function a verb, errors as they are described, the token of this tab.

const BASE = "api/v1";
const TOKEN = "posthaste.token";

/** What the API refuses, or that it cannot be reached (`status` 0). */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    this.status = status;
    this.title = title;
  }
}

// For this tab and until it closes; never in the address, in a cookie or on disk.
export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => sessionStorage.removeItem(TOKEN),
};

let ahead = 0;

/** The server's time: ages must not depend on how this computer's clock is set. */
export const now = () => Date.now() - ahead;

// The header counts whole seconds: a smaller difference says nothing.
function compareClocks(date) {
  const difference = Date.now() - Date.parse(date ?? "");
  ahead = Math.abs(difference) > 2000 ? difference : 0;
}

async function request(method, path, { query, body, signal } = {}) {
  const given = Object.entries(query ?? {}).filter(([, value]) =>
    value !== undefined && value !== null && value !== ""
  );
  const url = `${BASE}/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
  const headers = { Accept: "application/json" };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (method !== "GET") headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(url, {
      method,
      headers,
      signal,
      body: body && JSON.stringify(body),
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "No answer", "The server does not answer.");
  }
  compareClocks(response.headers.get("Date"));
  const answer = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer;
  throw new Problem(response.status, answer?.title ?? `Status ${response.status}`, answer?.detail);
}

export const get = (path, query, signal) => request("GET", path, { query, signal });
export const post = (path, body = {}) => request("POST", path, { body });
export const remove = (path) => request("DELETE", path);

/** A path of this outbox, each part escaped. */
export const inOutbox = (outbox, ...parts) =>
  ["outboxes", outbox, ...parts].map(encodeURIComponent).join("/");
