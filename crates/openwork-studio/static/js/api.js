// Calls of the server.

export class Refused extends Error {
  constructor(status, error) {
    super(typeof error === "string" ? error : [error.what, error.detail].filter(Boolean).join(": "));
    this.status = status;
  }
}

async function checked(response) {
  if (response.ok) return response;
  let error = `the server answered ${response.status}`;
  try { error = (await response.json()).error; } catch { /* not JSON */ }
  throw new Refused(response.status, error);
}

export const get = async (path) => (await checked(await fetch(path))).json();

export async function send(path, body, signal) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  return checked(response);
}

export const post = async (path, body, signal) => (await send(path, body, signal)).json();
export const postBytes = async (path, body, signal) => (await send(path, body, signal)).arrayBuffer();
export const postBlob = async (path, body, signal) => (await send(path, body, signal)).blob();
