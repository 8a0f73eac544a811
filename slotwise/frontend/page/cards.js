// One card a request: what was sent, what came back, where the time went, and the same as a curl command.

import { copyAs } from "./curl.js";
import { byId, make, milliseconds, percent } from "./dom.js";
import { way } from "./way.js";

const PARTS = ["queue", "decode", "inference"];
const SENT = {
  hedged: "The answer was late: a copy was sent",
  alone: "Its worker died: tried alone",
  again: "The new archive failed: answered by the old one",
};

// A card that waits, at the top or below `after`; `finish(card, asked, result, again)` fills it.
export function begin(asked, after) {
  byId("empty").hidden = true;
  byId("clear").hidden = false;
  const body = make("div", { className: "body" }, make("p", { className: "name muted small" }, asked.name));
  body.append(make("p", { className: "waiting" }, "Waiting for the answer"));
  const card = make("li", { className: asked.records ? "card wordy" : "card" }, asked.records ? null : thumb(asked), body);
  if (after?.isConnected) after.after(card);
  else byId("cards").prepend(card);
  return card;
}

function thumb(asked) {
  const none = () => make("div", { className: "thumb none" }, asked.name.split(".").pop().slice(0, 8));
  if (!asked.preview) return none();
  const picture = make("img", { className: "thumb", alt: "", src: asked.preview });
  picture.onload = () => picture.classList.toggle("small-picture", picture.naturalWidth < 112);
  picture.onerror = () => picture.replaceWith(none());
  return picture;
}

// What there is so far of an answer that comes in pieces.
export function grow(card, text) {
  const place = card.querySelector(".waiting, .growing");
  place.className = "growing";
  place.textContent = text;
}

export function finish(card, asked, result, again) {
  const body = card.querySelector(".body");
  if (result.ok || !result.streamed) body.querySelector(".waiting, .growing").remove();
  card.classList.toggle("failed", !result.ok);
  if (result.ok && result.streamed) body.append(...whole(result.found, asked));
  else if (result.ok) body.append(...answer(result, asked));
  else body.append(...failure(result, again));
  if (SENT[result.sent]) body.append(make("p", { className: "sent muted small" }, SENT[result.sent]));
  if (result.note) body.append(make("p", { className: "muted small" }, result.note));
  card.append(...timing(result));
  if (result.id && document.body.dataset.remembers) card.append(way(result.id));
  card.append(copyAs(asked.curl));
}

function failure(result, again) {
  const code = result.status ? `${result.status}: ` : "";
  const parts = [make("p", { className: "error" }, `${code}${result.error}`)];
  if (result.id) parts.push(make("p", { className: "muted small" }, `Request ${result.id}`));
  if (again) parts.push(make("p", {}, make("button", { type: "button", onclick: again }, "Try again")));
  return parts;
}

function whole(text, asked) {
  return asked.records ? [records([{ text }], asked.records)] : [make("p", { className: "answer" }, text)];
}

function answer({ found, shown }, asked) {
  if (asked.records && Array.isArray(found?.result)) return [records(found.result, asked.records)];
  if (typeof found?.caption === "string") return [make("p", { className: "answer" }, found.caption)];
  if (found?.label === undefined || !found.probabilities) {
    return [make("pre", { tabIndex: 0 }, shown)];
  }
  const parts = [make("p", { className: "answer" }, String(found.label)), bars(found.probabilities, found.label)];
  if (found.untrained) parts.push(make("p", { className: "muted small" }, "This model is untrained: it is for load tests."));
  return parts;
}

function bars(probabilities, label) {
  const rows = Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
  const box = make("div", { className: "bars" });
  for (const [name, value] of rows) {
    const top = name === String(label) ? " top" : "";
    const fill = make("i");
    fill.style.width = `${value * 100}%`;
    box.append(
      make("span", { className: `label${top}`, title: name }, name),
      make("span", { className: `track${top}`, ariaHidden: "true" }, fill),
      make("span", { className: top.trim() }, percent(value)),
    );
  }
  return box;
}

function records(results, sent) {
  const list = make("ol", { className: "records" });
  results.forEach((record, i) => {
    const said = record.error
      ? make("span", { className: "error" }, `${record.error.code}: ${record.error.message}`)
      : make("span", { className: "translated" }, record.text);
    list.append(make("li", {}, make("span", { className: "muted" }, sent[i]?.text ?? ""), said));
  });
  return list;
}

function timing(result) {
  const { times, batch } = result;
  if (!times || times.total === null) return [];
  const known = PARTS.filter((name) => times[name] !== null);
  const bar = make("div", { className: "time", ariaHidden: "true" });
  const legend = make("p", { className: "legend" });
  for (const name of known) {
    const piece = make("i", { className: name });
    piece.style.width = `${(100 * times[name]) / Math.max(times.total, 0.01)}%`;
    bar.append(piece);
    legend.append(part(make("i", { className: name }), name, times[name]));
  }
  legend.append(part("", "total", times.total));
  if (batch.size) legend.append(slots(batch));
  return [make("div", { className: "timing" }, bar, legend)];
}

function part(swatch, name, value) {
  return make("span", { className: "part" }, swatch, `${name} `, make("b", {}, milliseconds(value)));
}

function slots({ size, slot }) {
  const dots = make("span", { className: "slots", ariaHidden: "true" });
  if (size <= 64) for (let i = 0; i < size; i += 1) dots.append(make("i", { className: i === slot ? "mine" : "" }));
  return make("span", { className: "place" }, "slot ", make("b", {}, `${slot}`), " in a batch of ", make("b", {}, `${size}`), dots);
}
