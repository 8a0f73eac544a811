// The gateway's REST, as the page uses it.

// The key, where the gateway asks for one; it is forgotten with the tab.
let key = "";
try { key = sessionStorage.getItem("key") ?? ""; } catch { /* a browser that keeps nothing */ }

export const hasKey = () => key !== "";

export function useKey(given) {
  key = given.trim().replaceAll(/[^ -~]/gu, "?"); // no header takes anything else, and no key has it
  try { sessionStorage.setItem("key", key); } catch { /* as above */ }
}

const withKey = (headers) => (key ? { ...headers, authorization: `Bearer ${key}` } : headers);

export class NeedsKey extends Error {}

async function read(path) {
  const answer = await fetch(path, { headers: withKey({ accept: "application/json" }) });
  if (answer.status === 401) throw new NeedsKey(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

export const status = () => read("/status");
export const models = () => status().then((found) => found.models); // GET /models may be SageMaker's own
export const request = (id) => read(`/status/requests/${encodeURIComponent(id)}`);
export const schema = () => read("/openapi.json");
export async function example(path) {
  const answer = await fetch(path, { headers: withKey({}) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`); // an error is no example
  return answer.blob();
}

// JSON with its numbers as they are written there: a script rounds those that it cannot hold.
function asWritten(json, indent) {
  const kept = (_, value, from) => (typeof value === "number" && from?.source && JSON.rawJSON ? JSON.rawJSON(from.source) : value);
  return JSON.stringify(JSON.parse(json, kept), null, indent);
}

const number = (headers, name) => (headers.has(name) ? Number(headers.get(name)) : null);

const EVENTS = "text/event-stream";

// An answer that comes piece by piece: said(text) gets what there is of it each time. Throws where the connection breaks.
async function inPieces(answer, said) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const events = (rest + part.value).split("\n\n");
    rest = events.pop();
    for (const lines of events.map((event) => event.split("\n"))) {
      const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (!data) continue; // a comment, which keeps the connection alive
      const piece = JSON.parse(data);
      if (lines.includes("event: end")) return { text, error: null };
      if (lines.includes("event: error")) return { text, error: piece.error };
      text += typeof piece.text === "string" ? piece.text : `${asWritten(data)}\n`;
      said(text);
    }
  }
  return { text, error: { code: 0, message: "the answer broke off" } };
}

// Whether a file is not what it was when it was chosen; a folder that was dropped never was one.
const isUnread = (body) => body instanceof Blob && body.stream().getReader().read().then(() => false, () => true);

// One request to a model. Never throws: a gateway that cannot be reached is an error like any other.
// said(text): told what there is of an answer that comes in pieces; without it the answer comes whole.
export async function ask(path, body, type, said = null) {
  let answer;
  let text;
  const accept = said ? `${EVENTS}, */*` : "*/*";
  try {
    answer = await fetch(path, { method: "POST", body, headers: withKey({ accept, "content-type": type || "application/octet-stream" }) });
    if (said && answer.headers.get("content-type")?.startsWith(EVENTS)) {
      const { text: found, error } = await inPieces(answer, said);
      const told = { found, streamed: true, id: answer.headers.get("x-request-id"), note: answer.headers.get("x-model-note") };
      return { ok: !error, status: error ? error.code : 200, error: error?.message, times: null, batch: {}, sent: null, ...told };
    }
    text = await answer.text();
  } catch {
    const why = (await isUnread(body)) ? "the file cannot be read: it has changed, or is a folder" : "the gateway cannot be reached";
    return { ok: false, status: 0, error: why };
  }
  let found = text;
  let shown = text;
  try {
    found = JSON.parse(text);
    shown = typeof found === "string" ? found : asWritten(text, 2);
  } catch { /* it is no JSON */ }
  const { headers } = answer;
  const times = {
    total: number(headers, "x-total-ms"),
    queue: number(headers, "x-queue-ms"),
    decode: number(headers, "x-decode-ms"),
    inference: number(headers, "x-inference-ms"),
  };
  const batch = { size: number(headers, "x-batch-size"), slot: number(headers, "x-batch-slot") };
  const error = answer.ok ? null : found?.error?.message || answer.statusText;
  return { ok: answer.ok, status: answer.status, found, shown, error, times, batch, id: headers.get("x-request-id"), note: headers.get("x-model-note"), sent: headers.get("x-slotwise-sent") };
}
