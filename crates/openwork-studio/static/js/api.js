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
/** The facts of a design, and the tiles that were asked for with it: one array of bytes each, or null. */
export async function postDrawing(body, signal) {
  const response = await send("/api/draw", body, signal);
  if (response.headers.get("Content-Type") === "application/json") return { found: await response.json(), tiles: [] };
  const buffer = await response.arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const found = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const aligned = (n) => 4 * Math.ceil(n / 4);
  let at = aligned(4 + length);
  const tiles = found.tiles.map((bytes) => {
    if (bytes === null) return null;
    const tile = new Uint8Array(buffer, at, bytes);
    at += aligned(bytes);
    return tile;
  });
  return { found, tiles };
}
export const postBlob = async (path, body, signal) => (await send(path, body, signal)).blob();
