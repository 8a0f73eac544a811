// The status strip and the table of models, asked for every two seconds while somebody looks.

import { NeedsKey, hasKey, status } from "./api.js";
import { byId, make } from "./dom.js";

const EVERY_MS = 2000;
const SERVERS = { torchserve: "TorchServe", mms: "Multi Model Server", ray: "Ray Serve", triton: "Triton", slotwise: "Slotwise" };

function state(now, locked) {
  if (locked) return ["bad", hasKey() ? "This key is not known" : "A key is needed"];
  if (!now) return ["bad", "Gateway not reachable"];
  if (now.draining) return ["bad", "Shutting down"];
  if (!now.server?.reachable) return ["bad", "Model server not reachable"];
  return now.ready ? ["good", "Ready"] : ["", "Not every model is ready"];
}

const sum = (models, key) => models.reduce((total, model) => total + model[key], 0);

function show(now, locked) {
  const [kind, words] = state(now, locked);
  byId("lock").hidden = !locked && !hasKey();
  byId("key-form").hidden = !locked && !byId("key-form").dataset.wanted;
  byId("lock").textContent = locked ? "\u{1F512} Locked" : "\u{1F513} Other key";
  for (const link of document.querySelectorAll("nav a")) link.hidden = locked || hasKey();  // a link carries no key
  document.body.dataset.remembers = now?.remembers ? "yes" : "";
  const models = now?.models ?? [];
  const server = now?.server ? `${SERVERS[now.server.kind]}, ${now.server.profile}` : "none";
  const items = [
    ["State", make("span", {}, make("i", { className: `dot ${kind}` }), words)],
    ["Server, profile", server],
    ["Models", String(models.length)],
    ["Workers ready", `${sum(models, "ready_workers")} of ${sum(models, "workers")}`],
    ["In flight", String(sum(models, "in_flight") + sum(models, "queued"))],
    ["Requests a second", now ? now.requests_per_s.toFixed(1) : "0.0"],
  ];
  const made = items.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  byId("strip").replaceChildren(...made);
  byId("strip").dataset.state = kind || "unready";
  byId("models").tBodies[0].replaceChildren(...models.map(row));
}

function row(model) {
  const engine = [model.engine, model.precision].filter(Boolean).join(", ") || "not told";
  const cells = [engine, `${model.ready_workers} of ${model.workers}`, model.batch_size, `${model.max_batch_delay} ms`];
  cells.push(`${model.in_flight} of ${model.in_flight_max}`, `${model.queued} of ${model.queue_max}`);
  return make("tr", {}, make("th", { scope: "row" }, model.name), ...cells.map((cell) => make("td", {}, String(cell))));
}

// Calls `changed` when the set of models is another one than before.
export function follow(changed) {
  let known = null;
  async function look() {
    let now = null;
    let locked = false;
    try {
      now = await status();
    } catch (error) {
      locked = error instanceof NeedsKey; // anything else is shown as not reachable
    }
    show(now, locked);
    const names = now ? JSON.stringify(now.models.map((model) => model.name)) : known;
    if (names !== known) {
      const before = known;
      known = names;
      await changed().catch(() => { known = before; }); // asked for again with the next look
    }
  }
  const tick = () => (document.hidden ? null : look());
  document.addEventListener("visibilitychange", tick);
  document.addEventListener("key", () => { known = null; look(); });
  setInterval(tick, EVERY_MS);
  return look();
}
