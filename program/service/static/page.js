// The page's inputs: an image, a reference, a question, options and regions; then one request.
import { draw, el, spoken } from "./draw.js";
import { asPage, compared, difference, many, save, told } from "./extras.js";

const $ = (id) => document.getElementById(id);
const PRESETS = [
  ["Score", "", []],
  ["Main problem?", "What is the main quality problem of this image?", ["Blur", "Noise", "Compression artifacts", "Colour", "Brightness or contrast", "None"]],
  ["Blurry?", "Is the image blurry?", ["Yes", "No"]],
  ["Noisy?", "How noisy is the image?", ["Not at all", "A little", "Very"]],
  ["Describe", "Describe the distortions of this image and how they affect its quality.", []],
];
const EFFECTS = ["high-key", "low-key", "night", "coloured-light", "silhouette", "monochrome", "grade", "shallow-depth", "panning", "long-exposure", "mist"];
const EXAMPLES = ["coffee", "cat", "cat, blurred", "moon"];
const files = { image: null, reference: null, other: null };
let batch = []; // more images than one, to be listed
let regions = []; // {name, box: [left, top, right, bottom]} in pixels of the upright image
let found = []; // the same, of an answer
let running = null;

// Theme: as the system's, until switched; remembered where the browser lets us.
const stored = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
const dark = matchMedia("(prefers-color-scheme: dark)");
const setTheme = (name) => { document.documentElement.dataset.theme = name; };
setTheme(stored ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => { if (!stored) setTheme(dark.matches ? "dark" : "light"); });
$("theme").addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  setTheme(name);
  try { localStorage.setItem("theme", name); } catch { /* private windows keep nothing */ }
});

function fail(message) {
  $("error").textContent = message ?? "";
  $("error").hidden = !message;
  if (message) $("error").scrollIntoView({ block: "nearest" });
}

function clear() {
  $("answer").replaceChildren();
  $("answer").hidden = true;
  $("empty").hidden = false;
  $("spoken").textContent = "";
}

// Files
function take(kind, file, others = []) {
  if (!file) return;
  files[kind] = file;
  if (kind === "image") batch = others.length ? [file, ...others] : [];
  if (others.length && files.other) remove("other");
  if (kind === "other" && batch.length) take("image", files.image);
  const shown = kind === "image" ? $("preview") : $(`${kind}-preview`);
  if (shown.src) URL.revokeObjectURL(shown.src);
  shown.src = URL.createObjectURL(file);
  $(`${kind}-name`).textContent = `${file.name} · ${size(file.size)}`;
  $(`${kind}-label`).textContent = "Change";
  fail(null);
  clear();
  if (kind !== "image") {
    shown.hidden = $(`${kind}-clear`).hidden = false;
    busy(running !== null);
    return;
  }
  $("drop").classList.add("full");
  $("invite").hidden = true;
  $("stage").hidden = false;
  $("unshown").hidden = true;
  regions = [];
  found = [];
  listRegions();
}

const size = (bytes) => (bytes < 1e6 ? `${Math.max(1, Math.round(bytes / 1e3))} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

$("preview").addEventListener("load", () => {
  $("image-name").textContent = batch.length ? `${batch.length} images; the first is shown` : `${files.image.name} · ${$("preview").naturalWidth} × ${$("preview").naturalHeight} · ${size(files.image.size)}`;
  $("add-region").disabled = false;
});
$("preview").addEventListener("error", () => {
  $("stage").hidden = true;
  $("unshown").hidden = false;
  $("add-region").disabled = true;
});
$("image").addEventListener("change", (event) => take("image", ...all(event.target.files)));
for (const kind of ["other", "reference"]) {
  $(`${kind}-preview`).addEventListener("error", () => { $(`${kind}-preview`).hidden = true; });
  $(kind).addEventListener("change", (event) => take(kind, event.target.files[0]));
  $(`${kind}-clear`).addEventListener("click", () => { remove(kind); $(kind).focus(); });
}

function remove(kind) {
  files[kind] = null;
  clear();
  $(kind).value = "";
  $(`${kind}-name`).textContent = "";
  $(`${kind}-label`).textContent = "Choose";
  $(`${kind}-preview`).hidden = $(`${kind}-clear`).hidden = true;
  busy(running !== null);
}

function all(chosen) {
  const [first, ...others] = chosen;
  return [first, others];
}

for (const name of EXAMPLES) {
  const example = el("button", { type: "button" }, name);
  example.addEventListener("click", async () => {
    try {
      const response = await fetch(`examples/${encodeURIComponent(name)}`, { headers: bearer() });
      if (!response.ok) await answer(response);
      take("image", new File([await response.blob()], `${name}.jpg`, { type: "image/jpeg" }));
    } catch (error) { fail(error.message); }
  });
  $("examples").append(example);
}

// A file dropped beside the target would replace the page.
for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
const kindAt = (event) => event.target.closest?.("[data-kind]")?.dataset.kind;
window.addEventListener("dragover", (event) => $("drop").classList.toggle("over", !kindAt(event)));
window.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop").classList.remove("over"); });
window.addEventListener("drop", (event) => {
  $("drop").classList.remove("over");
  const dropped = [...(event.dataTransfer?.files ?? [])];
  if (!dropped.length) return;
  if (kindAt(event)) take(kindAt(event), dropped[0]);
  else {
    take("image", dropped[0], dropped.length > 2 ? dropped.slice(1) : []);
    if (dropped.length === 2) take("reference", dropped[1]);
  }
});
document.addEventListener("paste", (event) => {
  const pasted = [...(event.clipboardData?.files ?? [])].find((file) => file.type.startsWith("image/"));
  if (pasted) {
    event.preventDefault();
    take((files.image && document.activeElement.closest("[data-kind]")?.dataset.kind) || "image", pasted);
  }
});

// Effects that are meant
for (const effect of EFFECTS) {
  const chip = el("button", { type: "button", "aria-pressed": "false" }, effect);
  chip.addEventListener("click", () => chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") === "false")));
  $("intended").append(chip);
}

// Question and options
for (const [label, query, options] of PRESETS) {
  const chip = el("button", { type: "button" }, label);
  chip.setAttribute("aria-pressed", "false");
  chip.addEventListener("click", () => {
    $("query").value = query;
    listOptions(options);
    for (const other of $("presets").children) other.setAttribute("aria-pressed", String(other === chip));
  });
  $("presets").append(chip);
}
$("presets").firstChild.setAttribute("aria-pressed", "true");
$("query").addEventListener("input", () => { for (const chip of $("presets").children) chip.setAttribute("aria-pressed", "false"); });

function listOptions(texts) {
  $("options").replaceChildren(...texts.map((text, i) => {
    const letter = String.fromCharCode(65 + i);
    const input = el("input", { type: "text", value: text, maxLength: 500 });
    input.setAttribute("aria-label", `Option ${letter}`);
    const remove = el("button", { type: "button", class: "quiet" }, "✕");
    remove.setAttribute("aria-label", `Remove option ${letter}`);
    remove.addEventListener("click", () => {
      listOptions(optionTexts().filter((_, j) => j !== i));
      $("add-option").focus();
    });
    return el("div", { class: "entry" }, el("b", {}, letter), input, remove);
  }));
  $("add-option").hidden = texts.length >= 8;
}
const optionTexts = () => [...$("options").querySelectorAll("input")].map((input) => input.value);
$("add-option").addEventListener("click", () => {
  listOptions([...optionTexts(), ""]);
  $("options").lastChild.querySelector("input").focus();
});

// Regions: by mouse or pen on the preview, or by typing
function listRegions() {
  $("regions").replaceChildren(...regions.map((region, i) => {
    const name = el("input", { type: "text", value: region.name, maxLength: 100 });
    name.setAttribute("aria-label", `Name of region ${i + 1}`);
    name.addEventListener("input", () => { region.name = name.value; drawBoxes(); });
    const sides = ["Left", "Top", "Right", "Bottom"].map((side, j) => {
      const input = el("input", { type: "number", min: 0, step: 1, value: region.box[j] });
      input.setAttribute("aria-label", `${side} of region ${i + 1} in pixels`);
      input.addEventListener("input", () => { region.box[j] = Number(input.value); drawBoxes(); });
      return el("label", {}, side, input);
    });
    const remove = el("button", { type: "button", class: "quiet" }, "✕");
    remove.setAttribute("aria-label", `Remove region ${i + 1}`);
    remove.addEventListener("click", () => { regions.splice(i, 1); listRegions(); $("add-region").focus(); });
    return el("div", { class: "entry region" }, el("label", { class: "what" }, "Name", name), ...sides, remove);
  }));
  drawBoxes();
}

function drawBoxes(sketch = null) {
  const [width, height] = [$("preview").naturalWidth || 1, $("preview").naturalHeight || 1];
  const own = regions.map((region) => ({ ...region, kind: "" }));
  const others = found.filter((one) => !regions.some((region) => region.name === one.name));
  $("boxes").replaceChildren(...[...own, ...others, ...(sketch ? [sketch] : [])].map(({ name, box, kind }) => {
    const node = el("div", { class: `box ${kind} ${box[1] / height < 0.08 ? "low" : ""}` }, el("span", {}, name || "region"));
    Object.assign(node.style, {
      left: `${(box[0] / width) * 100}%`, top: `${(box[1] / height) * 100}%`,
      width: `${((box[2] - box[0]) / width) * 100}%`, height: `${((box[3] - box[1]) / height) * 100}%`,
    });
    return node;
  }));
}

function addRegion(box) {
  let number = regions.length + 1;
  while (regions.some((region) => region.name === `region ${number}`)) number++;
  regions.push({ name: `region ${number}`, box });
  listRegions();
  const name = $("regions").lastChild.querySelector("input");
  name.focus({ preventScroll: true });
  name.select();
}
$("add-region").addEventListener("click", () => {
  const [width, height] = [$("preview").naturalWidth, $("preview").naturalHeight];
  addRegion([width / 4, height / 4, (3 * width) / 4, (3 * height) / 4].map(Math.round));
});

let corner = null;
function spot(event) {
  const frame = $("preview").getBoundingClientRect();
  const at = (value, low, span, full) => Math.round(Math.min(1, Math.max(0, (value - low) / span)) * full);
  return [at(event.clientX, frame.left, frame.width, $("preview").naturalWidth), at(event.clientY, frame.top, frame.height, $("preview").naturalHeight)];
}
const span = (a, b) => [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[0], b[0]), Math.max(a[1], b[1])];
$("stage").addEventListener("dragstart", (event) => event.preventDefault());
$("stage").addEventListener("pointerdown", (event) => {
  if (event.button !== 0 || event.pointerType === "touch" || files.other) return; // a finger scrolls the page
  corner = spot(event);
  $("stage").setPointerCapture(event.pointerId);
});
$("stage").addEventListener("pointermove", (event) => { if (corner) drawBoxes({ name: "", box: span(corner, spot(event)), kind: "" }); });
$("stage").addEventListener("pointerup", (event) => {
  if (!corner) return;
  const box = span(corner, spot(event));
  corner = null;
  if (box[2] - box[0] >= 4 && box[3] - box[1] >= 4) addRegion(box);
  else drawBoxes();
});
$("stage").addEventListener("pointercancel", () => { corner = null; drawBoxes(); });

// The request
const bearer = () => ($("token").value ? { Authorization: `Bearer ${$("token").value.trim()}` } : {});

function form(image = files.image) {
  const body = new FormData();
  body.append("image", image, image.name || "pasted.png");
  if (files.reference) body.append("reference", files.reference);
  if (files.other) {
    body.append("image", files.other, files.other.name || "pasted.png");
    return body;
  }
  if ($("query").value.trim()) body.append("query", $("query").value);
  for (const text of optionTexts()) if (text.trim()) body.append("option", text);
  for (const chip of $("intended").querySelectorAll("[aria-pressed=true]")) body.append("intended", chip.textContent);
  if (regions.length) body.append("regions", JSON.stringify(Object.fromEntries(regions.map((r) => [r.name.trim() || "region", r.box]))));
  return body;
}

function busy(on) {
  document.body.classList.toggle("busy", on);
  $("submit").disabled = on;
  $("submit").textContent = on ? "Judging…" : files.other ? "Compare the two" : "Judge the image";
  $("asking").hidden = files.other !== null;
  $("cancel").hidden = !on;
  $("result").setAttribute("aria-busy", String(on));
}

async function answer(response) {
  let body = null;
  try { body = await response.json(); } catch { /* not ours, as a proxy's page */ }
  if (response.ok && body) return body;
  if (response.status === 401) askForToken();
  const wait = response.headers.get("Retry-After");
  throw new Error(body?.error ?? `the service answered ${response.status}${wait ? `; try again in ${wait} s` : ""}`);
}

const ask = async (image, signal) =>
  answer(await fetch(files.other ? "compare" : "assess", { method: "POST", body: form(image), headers: bearer(), signal }));

function list(box, count) {
  if (!box.isConnected) reveal(box);
  $("spoken").textContent = `${count} of ${batch.length} images judged`;
}

function open({ file, result, error }) {
  take("image", file);
  if (result) show(result);
  else fail(error);
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (running) return;
  fail(null);
  if (!files.image) { fail("Choose an image first."); $("image").focus(); return; }
  clear();
  running = new AbortController();
  const started = performance.now();
  const ticking = setInterval(() => { $("clock").textContent = `${((performance.now() - started) / 1000).toFixed(1)} s`; }, 100);
  busy(true);
  try {
    const pair = [files.image, files.other];
    if (files.other) compare(await ask(files.image, running.signal), pair);
    else if (batch.length) await many(batch, ask, open, running.signal, list);
    else show(await ask(files.image, running.signal));
  } catch (error) {
    if (error.name === "AbortError") fail("Cancelled.");
    else fail(error instanceof TypeError ? "The service cannot be reached; is it still running?" : error.message);
  } finally {
    clearInterval(ticking);
    $("clock").textContent = "";
    running = null;
    busy(false);
  }
});
$("cancel").addEventListener("click", () => running?.abort());

function compare(result, pair) {
  found = [];
  drawBoxes();
  reveal(...compared(result, pair), downloads(result, pair));
  $("spoken").textContent = told(result);
}

function show(result) {
  const logs = result.state.executor_evidence?.tool_logs ?? [];
  const boxes = new Map(logs.filter((log) => log.box).map((log) => [log.region, log.box]));
  for (const [name, box] of Object.entries(result.state.regions ?? {})) boxes.set(name, box);
  found = [...boxes].map(([name, box]) => ({ name, box, kind: "found" }));
  drawBoxes();
  reveal(...draw(result));
  const map = mapButton();  // beside the reasons
  ($("answer").querySelector(".findings") ?? $("details")).before(map);
  map.click();
  const canvas = files.reference && difference($("preview"), $("reference-preview"));
  if (canvas) $("details").before(el("h2", {}, "Difference from the reference"), canvas);
  $("answer").append(downloads(result));
  $("spoken").textContent = spoken(result);
}

function reveal(...parts) {
  $("empty").hidden = true;
  $("answer").hidden = false;
  $("answer").replaceChildren(...parts);
  if (matchMedia("(max-width: 860px)").matches) $("result").scrollIntoView({ block: "start" });
}

function downloads(result, pair = null) {
  const name = files.image.name || "pasted.png";
  const button = (title, work) => {
    const node = el("button", { type: "button", class: "quiet" }, title);
    node.addEventListener("click", work);
    return node;
  };
  const json = button("Download JSON", () => save(`${name}.json`, "application/json", JSON.stringify(result, null, 2)));
  if (pair) return el("div", { class: "block downloads" }, json);
  return el("div", { class: "block downloads" }, json,
    button("Download page", async () => save(`${name}.html`, "text/html", await asPage($("answer"), $("preview"), name))));
}

function mapButton() {
  const ask = el("button", { type: "button", class: "quiet add", id: "map" }, "Show where quality is lost");
  ask.addEventListener("click", async (event) => {
    ask.disabled = true;
    ask.textContent = "Drawing…";
    try {
      const response = await fetch("heatmap", { method: "POST", body: form(), headers: bearer() });
      if (!response.ok) await answer(response);
      const picture = el("img", { id: "heatmap", alt: "The image in grey, red where quality is lost" });
      picture.src = URL.createObjectURL(await response.blob());
      picture.addEventListener("load", () => URL.revokeObjectURL(picture.src));
      ask.replaceWith(el("figure", { class: "map" }, picture, el("figcaption", {}, "Red: where quality is lost")));
    } catch (error) {
      if (event.isTrusted) fail(error.message);  // not of the page's own asking
      ask.disabled = false;
      ask.textContent = "Show where quality is lost";
    }
  });
  return ask;
}

// Who answers
function askForToken() {
  $("token-row").hidden = false;
  $("token").focus();
}
async function about() {
  const response = await fetch("version", { headers: bearer() });
  if (response.status === 401) { $("token-row").hidden = false; return; }
  if (!response.ok) return;
  const { models, program_sha256: sha, demos } = await response.json();
  const kind = demos ? `compiled, ${demos} demos` : "uncompiled";
  $("about").textContent = `${[...new Set(Object.values(models))].join(", ")} · program ${sha.slice(0, 7)} (${kind})`;
}
$("token").addEventListener("change", () => about().catch(() => {}));
about().catch(() => { /* the page works without knowing who answers */ });
