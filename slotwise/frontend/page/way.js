// One request's way, drawn: its waits, each batch that it was in and whom that had, and what the model ran.

import { request } from "./api.js";
import { make, milliseconds } from "./dom.js";

const MOST_RECORDS = 8; // of a request of many that are drawn

// Closed until somebody wants to see it; asked for then.
export function way(id) {
  const box = make("div", { className: "steps" });
  const details = make("details", { className: "way" }, make("summary", {}, "Its way"), box);
  details.addEventListener("toggle", async () => {
    if (!details.open || box.childElementCount) return;
    try {
      box.replaceChildren(...drawn(await request(id)));
    } catch {
      box.replaceChildren(make("p", { className: "muted small" }, "It is not remembered any more, or for the operator only."));
    }
  });
  return details;
}

function drawn(seen) {
  const rows = steps(seen, seen.took_ms);
  for (const record of seen.records.slice(0, MOST_RECORDS)) {
    rows.push(make("span", { className: "of muted" }, record.request_id), ...steps(record, seen.took_ms));
  }
  const left = seen.records.length - MOST_RECORDS;
  if (left > 0) rows.push(make("span", { className: "of muted" }, `and ${left} more records`));
  return rows;
}

function steps(one, whole) {
  const found = [];
  let since = one.placed_ms;
  for (const batch of one.batches) {
    if (since !== null) found.push([since, batch.sent_ms - since, "queue", "waits for a worker"]);
    const told = batch.decode_ms !== undefined;
    const end = told && batch.total_ms ? batch.sent_ms + batch.total_ms : whole;
    found.push([batch.sent_ms, end - batch.sent_ms, "batch", named(batch)]);
    since = end;
    if (!told) continue;
    found.push([batch.sent_ms, batch.decode_ms, "decode", "decodes"]);
    if (!batch.calls.length) found.push([batch.sent_ms + batch.decode_ms, batch.inference_ms, "inference", "the model"]);
    for (const call of batch.calls) found.push([call.at_ms, call.took_ms, call.had_it ? "inference" : "other", ran(call)]);
  }
  for (const note of one.notes) found.push([note.at_ms, 0, "note", note.what]);
  if (one.stream) found.push([one.stream.first_ms, one.stream.last_ms - one.stream.first_ms, "inference", `${one.stream.pieces} pieces`]);
  return found.sort((a, b) => a[0] - b[0]).flatMap(([at, took, kind, words]) => row(at, took, kind, words, whole));
}

function named(batch) {
  const where = batch.worker ? `batch ${batch.batch} of ${batch.worker}` : "a batch";
  return `${where}: slot ${batch.slot} of ${batch.size}${batch.failure ? `, ${batch.failure}` : ""}`;
}

function ran(call) {
  const without = call.had_it ? "" : ", without this one";
  return `the model: ${call.rows} rows as ${call.size}${without}${call.error ? `, raised ${call.error}` : ""}`;
}

function row(at, took, kind, words, whole) {
  const share = (value) => `${Math.min(100, Math.max(0, (100 * value) / Math.max(whole, 0.001)))}%`;
  const piece = make("i", { className: kind });
  piece.style.left = share(at);
  piece.style.width = share(took);
  const track = make("span", { className: "track", ariaHidden: "true" }, piece);
  return [make("span", {}, words), track, make("span", {}, kind === "note" ? `at ${milliseconds(at)}` : milliseconds(took))];
}
