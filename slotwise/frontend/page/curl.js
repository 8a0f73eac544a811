// A request as curl commands: one for each protocol that the gateway speaks.

import { make } from "./dom.js";

const quoted = (text) => (/^[\w./:@=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const url = (path) => quoted(location.origin + path);

// model: as GET /status shows it.
export function curlFile(model, path, { name, type }) {
  const plain = !type || type.startsWith("image/") || type === "application/octet-stream";
  const head = plain ? "" : `-H 'Content-Type: ${type}' `;
  const commands = { predictions: `curl -T ${quoted(name)} ${head}${url(path)}` };
  if (model.takes === "picture") {
    const called = encodeURIComponent(model.name);
    const send = (body, way) => `printf '${body}' "$(base64 < ${quoted(name)} | tr -d '\\n')" | curl -d @- ${url(way)}`;
    const tensor = '{"name": "input", "shape": [1], "datatype": "BYTES", "data": ["%s"]}';
    commands["KServe V1"] = send('{"instances": [{"b64": "%s"}]}', `/v1/models/${called}:predict`);
    commands["Open Inference Protocol V2"] = send(`{"inputs": [${tensor}]}`, `/v2/models/${called}/infer`);
  }
  if (model.default) commands.SageMaker = `curl -X POST -T ${quoted(name)} ${head}${url("/invocations")}`;
  return commands;
}

export function curlJson(path, body) {
  return { predictions: `curl -H 'Content-Type: application/json' -d ${quoted(body)} ${url(path)}` };
}

export function copyAs(commands) {
  const shown = make("pre", { tabIndex: 0 }, Object.values(commands)[0]);
  const copy = make("button", { type: "button" }, "Copy");
  copy.onclick = async () => {
    try {
      await navigator.clipboard.writeText(shown.textContent);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(shown);
      copy.textContent = "Selected";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  };
  const box = make("div", { className: "copy" }, shown, copy);
  const names = Object.keys(commands);
  if (names.length > 1) {
    const choice = make("select", { ariaLabel: "Protocol" }, ...names.map((name) => make("option", {}, name)));
    choice.onchange = () => { shown.textContent = commands[choice.value]; };
    box.prepend(choice);
  }
  return make("details", {}, make("summary", {}, "As a curl command"), box);
}
