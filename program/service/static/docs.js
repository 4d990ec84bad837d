// Shows the service's own OpenAPI description: no script or style from elsewhere.
import { el } from "./draw.js";

document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
document.getElementById("curl").textContent = [
  `curl -F image=@photo.jpg ${location.origin}/assess`,
  `curl -F image=@distorted.png -F reference=@original.png ${location.origin}/assess`,
  `curl -F image=@photo.jpg -F "query=Is it blurry?" -F option=Yes -F option=No ${location.origin}/assess`,
].join("\n");

function kind(schema, all) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map((one) => kind(one, all)).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items ?? {}, all)}`;
  if (schema.format === "binary") return "file";
  return schema.type ?? "anything";
}

function fields(schema, all) {
  const whole = schema.$ref ? all[schema.$ref.split("/").pop()] ?? {} : schema;
  const required = new Set(whole.required ?? []);
  const rows = Object.entries(whole.properties ?? {}).map(([name, one]) =>
    el("tr", {}, el("td", {}, el("code", {}, name), required.has(name) ? " *" : ""), el("td", {}, kind(one, all)), el("td", {}, one.description ?? "")));
  if (!rows.length) return el("p", { class: "cost" }, "An object.");
  const head = el("tr", {}, ...["Field", "Type", "What it is"].map((name) => el("th", { scope: "col" }, name)));
  return el("div", { class: "tablebox" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
}

const api = await (await fetch("openapi.json")).json();
const all = api.components?.schemas ?? {};
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const panel = el("section", { class: "panel" }, el("h1", {}, `${method.toUpperCase()} ${path}`), el("p", {}, operation.description ?? operation.summary));
    for (const [media, content] of Object.entries(operation.requestBody?.content ?? {})) panel.append(el("h2", { class: "block" }, media), fields(content.schema, all));
    panel.append(el("h2", { class: "block" }, "Answers"));
    const list = el("ul");
    for (const [status, response] of Object.entries(operation.responses)) {
      if (status === "422" && !operation.requestBody) continue;
      const schema = Object.values(response.content ?? {})[0]?.schema;
      const item = el("li", {}, el("code", {}, status), ` ${schema?.$ref ? kind(schema, all) : ""} ${status === "200" ? "" : response.description}`);
      list.append(item);
      if (status === "200" && schema?.$ref) item.append(el("details", {}, el("summary", {}, "Its fields"), fields(schema, all)));
    }
    panel.append(list);
    document.getElementById("operations").append(panel);
  }
}
