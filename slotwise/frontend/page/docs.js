// The routes, from /openapi.json: nothing is loaded from elsewhere.

import { schema as read } from "./api.js";
import { byId, make } from "./dom.js";

const CALLS = {
  "post /predictions/{model}": "curl -X POST --data-binary @7.png {origin}/predictions/digits",
  "put /predictions/{model}": "curl -T 7.png {origin}/predictions/digits",
  "post /caption": "curl --data-binary @photo.jpg {origin}/caption",
  "post /translation": `curl -d '{"payload": {"fromLang": "ja", "toLang": "en", "records": [{"id": "123", "text": "..."}]}}' {origin}/translation`,
};

function row(...cells) {
  const [first, ...rest] = cells;
  return make("tr", {}, make("th", { scope: "row" }, first), ...rest.map((cell) => make("td", {}, cell)));
}

function table(heads, rows) {
  const head = make("thead", {}, make("tr", {}, ...heads.map((name) => make("th", { scope: "col" }, name))));
  return make("div", { className: "scroll" }, make("table", {}, head, make("tbody", {}, ...rows)));
}

function operation(path, methods) {
  const [described] = Object.values(methods);
  const calls = Object.keys(methods).map((method) => CALLS[`${method} ${path}`] ?? (method === "get" && !path.includes("{") ? `curl {origin}${path}` : null));
  const parameters = (described.parameters ?? []).map((each) => row(each.name, each.in, each.description ?? ""));
  const bodies = Object.keys(described.requestBody?.content ?? {});
  const answers = Object.entries(described.responses).map(([code, answer]) => row(code, answer.description));
  const verbs = Object.keys(methods).join(" or ").toUpperCase().replace(" OR ", " or ");
  return make(
    "section",
    { className: "panel" },
    make("h2", {}, make("code", { className: "method" }, verbs), " ", make("code", {}, path)),
    make("p", {}, described.summary),
    ...calls.filter(Boolean).map((call) => make("pre", { tabIndex: 0 }, call.replace("{origin}", location.origin))),
    bodies.length ? make("p", { className: "muted small" }, `Body: ${bodies.join(" or ")}`) : null,
    make("details", {}, make("summary", {}, "Parameters and answers"),
      parameters.length ? table(["Parameter", "In", "Meaning"], parameters) : null, table(["Status", "Meaning"], answers)),
  );
}

const schema = await read();
for (const [path, methods] of Object.entries(schema.paths)) byId("operations").append(operation(path, methods));
