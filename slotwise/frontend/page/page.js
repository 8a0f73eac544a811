// The page: choose a model, give it something, see the answers.

import * as api from "./api.js";
import { begin, finish, grow } from "./cards.js";
import { curlFile, curlJson } from "./curl.js";
import { byId, make } from "./dom.js";
import { paper } from "./draw.js";
import { follow } from "./strip.js";
import { language } from "./languages.js";

const TOGETHER = 6; // as many requests at once as a browser sends to one host
const TRY_AGAIN = [0, 429, 500, 502, 503, 504, 507];
const DROP_TEXT = {
  picture: "Drop pictures here, paste them, or choose some.",
  tensor: "Drop tensors here (raw numbers, .npy or JSON), or choose some.",
  file: "Drop files here, paste them, or choose some.",
};

let models = [];
let drawings = 0;
const current = () => models.find((model) => model.name === byId("model").value);
const path = (model) => `/predictions/${encodeURIComponent(model.name)}`;

// Sending

async function send(asked, card = begin(asked)) {
  const again = () => {
    card.remove();
    send(asked).then(tell);
  };
  const one = !asked.records || asked.records.length === 1; // a stream answers one input
  const result = await api.ask(asked.path, asked.body, asked.type, one ? (text) => grow(card, text) : null);
  finish(card, asked, result, TRY_AGAIN.includes(result.status) ? again : null);
  return { asked, result };
}

function tell(...done) {
  const good = done.filter(({ result }) => result.ok);
  const [{ asked, result }] = done;
  const one = result.ok ? result.found?.label ?? result.found?.caption ?? "answered" : `error, ${result.error}`;
  const sizes = good.map((each) => each.result.batch.size).filter(Boolean);
  const batch = sizes.length ? `, in batches of up to ${Math.max(...sizes)}` : "";
  const bad = done.length - good.length;
  const many = `${good.length} answered${batch}; ${bad ? `${bad} refused, each for itself` : "none refused"}.`;
  byId("summary").textContent = done.length === 1 ? `${asked.name}: ${one}` : many;
}

// model: the one that was chosen when they were asked for.
async function sendFiles(files, model = current()) {
  if (!model || !files.length) return;
  const waiting = [...files].map((file) => ({
    name: file.name,
    body: file,
    type: file.type,
    preview: file.type.startsWith("image/") ? URL.createObjectURL(file) : null,
    path: path(model),
    curl: curlFile(model, path(model), file),
  }));
  byId("summary").textContent = `Sending ${waiting.length === 1 ? waiting[0].name : `${waiting.length} files`}`;
  const done = [];
  let last = null;
  const cards = new Map(waiting.map((asked) => [asked, (last = begin(asked, last))]));
  const worker = async () => {
    while (waiting.length) {
      const asked = waiting.shift();
      done.push(await send(asked, cards.get(asked)));
    }
  };
  await Promise.all(Array.from({ length: TOGETHER }, worker));
  tell(...done);
}

async function sendDrawing(sheet) {
  if (sheet.isEmpty()) {
    byId("summary").textContent = "Draw something first.";
    return;
  }
  drawings += 1;
  const model = current();
  const png = await sheet.png();
  if (model.takes === "tensor") {
    const body = new Blob([sheet.tensor(model.side).buffer]);
    const name = `drawing-${drawings}.f32`;
    tell(await send({ name, body, type: "application/octet-stream", preview: URL.createObjectURL(png), path: path(model), curl: curlFile(model, path(model), { name }) }));
  } else {
    await sendFiles([new File([png], `drawing-${drawings}.png`, { type: "image/png" })], model);
  }
}

async function translate(event, model = current()) {
  event?.preventDefault();
  const lines = byId("text").value.split("\n").filter((line) => line.trim());
  if (!lines.length) {
    byId("summary").textContent = "Type something first.";
    return;
  }
  const records = lines.map((text, i) => ({ id: String(i + 1), text }));
  const body = JSON.stringify({ payload: { fromLang: byId("from").value, toLang: byId("to").value, records } });
  const way = model.name === "translation" ? "/translation" : path(model);
  const name = `${language(byId("from").value)} to ${language(byId("to").value)}`;
  tell(await send({ name, body, type: "application/json", records, path: way, curl: curlJson(way, body) }));
}

async function sendExamples(broken) {
  const model = current();
  const files = await Promise.all(model.examples.map(exampleFile));
  if (broken) files.splice(files.length >> 1, 0, new File([files[0].slice(0, 40)], "broken.png", { type: "image/png" }));
  await sendFiles(files, model);
}

const noExample = () => { byId("summary").textContent = "The example cannot be had: try again."; };

async function exampleFile(url) {
  const blob = await api.example(url);
  return new File([blob], decodeURIComponent(url.split("/").pop()), { type: blob.type });
}

// Showing what the chosen model takes

function choose() {
  const model = current();
  if (!model) return;
  byId("about").textContent = model.description;
  byId("files").hidden = model.takes === "translation";
  byId("translate").hidden = model.takes !== "translation";
  byId("draw").hidden = !model.draw;
  byId("drop-text").textContent = DROP_TEXT[model.takes] ?? DROP_TEXT.file;
  byId("picked").accept = model.takes === "picture" ? "image/*" : "";
  byId("choose").textContent = model.takes === "picture" ? "Choose pictures" : "Choose files";
  byId("camera").hidden = model.takes !== "picture";
  for (const [id, chosen] of [["from", 0], ["to", 1]]) {
    const options = model.languages.map((code) => make("option", { value: code }, language(code)));
    byId(id).replaceChildren(...options);
    byId(id).value = model.languages[chosen] ?? model.languages[0];
  }
  showExamples(model);
}

function showExamples(model) {
  const asFiles = model.takes !== "translation";
  byId("examples").hidden = !model.examples.length;
  byId("example-all").hidden = !asFiles || model.examples.length < 2;
  byId("example-list").replaceChildren(...model.examples.map((url) => {
    const name = decodeURIComponent(url.split("/").pop());
    const ask = async (file) => (asFiles ? sendFiles([file], model) : fill(await file.text(), model));
    const use = () => exampleFile(url).then(ask, noExample);
    if (model.takes !== "picture") return make("button", { type: "button", className: "words", onclick: use }, name);
    const picture = make("img", { alt: "" });
    if (api.hasKey()) api.example(url).then((blob) => { picture.src = URL.createObjectURL(blob); }, () => null);
    else picture.src = url;
    picture.onload = () => picture.classList.toggle("small-picture", picture.naturalWidth < 64);
    return make("button", { type: "button", onclick: use, title: name, ariaLabel: `Ask about the example ${name}` }, picture);
  }));
}

function fill(text, model) {
  const { payload } = JSON.parse(text);
  byId("from").value = payload.fromLang;
  byId("to").value = payload.toLang;
  byId("text").value = payload.records.map((record) => record.text).join("\n");
  return translate(null, model);
}

async function load() {
  const before = byId("model").value;
  models = await api.models();
  const options = models.map((model) => make("option", { value: model.name }, model.name));
  byId("model").replaceChildren(...(options.length ? options : [make("option", {}, "No model on this server yet")]));
  byId("model").disabled = !options.length;
  const photos = models.find((model) => model.takes === "picture" && !model.draw); // what most people have at hand
  const opens = models.find((model) => model.name === before) ?? photos ?? models[0];
  if (opens) byId("model").value = opens.name;
  choose();
}

// Wiring

function wireFiles() {
  const drop = byId("drop");
  byId("choose").onclick = () => byId("picked").click();
  byId("camera").onclick = () => byId("photo").click();
  for (const id of ["picked", "photo"]) {
    byId(id).onchange = async (event) => {
      const files = [...event.target.files];
      event.target.value = "";
      await sendFiles(files);
    };
  }
  document.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (current()?.takes !== "translation") sendFiles(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length && current()?.takes !== "translation") sendFiles(event.clipboardData.files);
  });
}

function wireTheme() {
  const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const label = () => { byId("theme").textContent = dark() ? "Light" : "Dark"; };
  try {
    const kept = localStorage.getItem("theme");
    if (kept) document.documentElement.dataset.theme = kept;
  } catch { /* a browser that keeps nothing */ }
  byId("theme").onclick = () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* as above */ }
    label();
  };
  label();
}

function wireKey() {
  byId("lock").onclick = () => {
    byId("key-form").dataset.wanted = "yes";
    byId("key-form").hidden = false;
    byId("key").focus();
  };
  byId("key-form").onsubmit = (event) => {
    event.preventDefault();
    byId("key-form").dataset.wanted = "";
    api.useKey(byId("key").value);
    byId("key").value = "";
    document.dispatchEvent(new Event("key"));
  };
}

const sheet = paper(byId("paper"), () => sendDrawing(sheet));
byId("send-drawing").onclick = () => sendDrawing(sheet);
byId("clear-drawing").onclick = () => sheet.clear();
byId("model").onchange = choose;
byId("translate").onsubmit = translate;
byId("text").onkeydown = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) translate(event); };
byId("turn").onclick = () => { [byId("from").value, byId("to").value] = [byId("to").value, byId("from").value]; };
byId("send-all").onclick = () => sendExamples(false).catch(noExample);
byId("send-broken").onclick = () => sendExamples(true).catch(noExample);
byId("clear").onclick = () => {
  byId("cards").replaceChildren();
  byId("empty").hidden = false;
  byId("clear").hidden = true;
  byId("summary").textContent = "";
};
wireFiles();
wireTheme();
wireKey();
await follow(load);
