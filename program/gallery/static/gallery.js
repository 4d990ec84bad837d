(function () {
"use strict";
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const STORE = `agentic-iqa gallery ${data.id}`;
const all = data.pictures;
const byFile = new Map(all.map((each) => [each.file, each]));
const WORDS = { keep: "keep", alternate: "alternate", reject: "reject", look: "not sure", failed: "failed" };
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const sentences = (...parts) => {  // each but the last ends with a stop
  const said = parts.filter(Boolean);
  return said.map((text, n) => (n + 1 < said.length && !/[.!?。]$/.test(text) ? `${text}.` : text)).join(" ");
};

// Decisions, kept in the browser as well: what is not yet in the gallery's folder is in no other place.

const decisions = new Map();
const undo = [];
const isOf = (file, entry) => byFile.has(file) && byFile.get(file).sha256 === entry.sha256;
const isMade = (entry) => Boolean(entry.verdict || entry.stars || entry.best);

function take(entries) {  // of two decisions the one on the picture as it is now, else the newer one
  for (const [file, entry] of Object.entries(entries || {})) {
    if (!entry || typeof entry.sha256 !== "string") continue;
    const known = decisions.get(file);
    let isBetter = true;
    if (known && isOf(file, known) !== isOf(file, entry)) isBetter = isOf(file, entry);
    else if (known) isBetter = (entry.decided_at || 0) > (known.decided_at || 0);
    if (isBetter) decisions.set(file, entry);
  }
}

function takeUnsaved() {
  try { take(JSON.parse(localStorage.getItem(STORE))); } catch { /* a browser that keeps nothing of pages from disk */ }
}
take(data.decisions);
takeUnsaved();

function keepHere() {
  takeUnsaved();  // what another tab decided meanwhile
  const unsaved = [...decisions].filter(([file, entry]) => entry !== data.decisions[file]);
  try { localStorage.setItem(STORE, JSON.stringify(Object.fromEntries(unsaved))); } catch { /* likewise */ }
}

function decided(picture) {
  const entry = decisions.get(picture.file);
  return entry && isOf(picture.file, entry) ? entry : {};
}

function opinion(picture) {  // what a person says of it: the rule is that of opinion_of in choice.py
  const mine = decided(picture);
  let { verdict = null } = mine, { rating } = picture;
  if (mine.stars != null) rating = mine.stars;
  else if (rating === -1 && (verdict === "keep" || mine.best)) rating = null;
  if (!verdict && picture.sha256) {
    if (rating === -1) verdict = "reject";
    else if (rating >= data.kept_stars) verdict = "keep";
  }
  return { verdict, stars: verdict !== "reject" && rating > 0 ? rating : null };
}

const verdictOf = (picture) => opinion(picture).verdict || picture.verdict;
const isRejected = (picture) => opinion(picture).verdict === "reject";
const isMine = (picture) => Boolean(opinion(picture).verdict || opinion(picture).stars || decided(picture).best);
const bestOf = (group) =>
  group.pictures.find((each) => decided(each).best && !isRejected(each)) || group.pictures.find((each) => !isRejected(each)) || group.pictures[0];

function put(picture, fields) {  // newer than all that is known; without fields it takes back what was decided
  const known = decisions.get(picture.file);
  const now = Math.max(Date.now(), ((known && known.decided_at) || 0) + 1);
  const suggested = picture.suggested || null;  // what it confirms is no label
  decisions.set(picture.file, { ...fields, sha256: picture.sha256, decided_at: now, suggested });
}

function change(pictures) {  // [picture, fields] pairs that are undone together
  undo.push({ before: pictures.map(([picture]) => [picture, decided(picture)]), at: current });
  for (const [picture, fields] of pictures) put(picture, { ...decided(picture), ...fields });
  keepHere(); refresh();
}

function goBack() {
  const last = undo.pop();
  if (!last) return tell("nothing to undo");
  for (const [picture, entry] of last.before) put(picture, entry);
  keepHere(); refresh();
  go(last.at);
  if ($("closer").open) again();
  tell("undone");
}

function save() {
  const pictures = Object.fromEntries(decisions);
  const text = JSON.stringify({ decisions: "agentic-iqa", version: 1, pictures }, null, 1);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "decisions.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  tell(`${[...decisions.values()].filter(isMade).length} decisions saved`);
}

// Groups, and which pictures are shown.

const groups = [];
{
  const known = new Map();
  for (const picture of all) {
    const id = picture.group == null ? `alone ${picture.file}` : picture.group;
    if (!known.has(id)) { known.set(id, { name: picture.group, pictures: [] }); groups.push(known.get(id)); }
    known.get(id).pictures.push(picture);
    picture.of = known.get(id);
  }
}
const filters = { verdict: "", fault: "", kind: "", which: "" };
const fits = (picture) =>
  (!filters.verdict || verdictOf(picture) === filters.verdict)
  && (!filters.fault || (filters.fault === "-" ? !picture.faults.length : picture.faults.some(([name]) => name === filters.fault)))
  && (!filters.kind || picture.kind === filters.kind)
  && (!filters.which
    || (filters.which === "groups" && picture.group != null)
    || (filters.which === "best" && picture.group != null && bestOf(picture.of) === picture)
    || (filters.which === "mine" && isMine(picture))
    || (filters.which === "open" && !isMine(picture)));

function offer(select, values) {
  for (const value of [...new Set(values)].filter(Boolean).sort()) select.append(new Option(value, value));
}
offer($("fault"), all.flatMap((each) => each.faults.map(([name]) => name)));
offer($("kind"), all.map((each) => each.kind));
for (const name of Object.keys(filters)) $(name).addEventListener("change", () => { filters[name] = $(name).value; arrange(); });
$("order").addEventListener("change", () => { current = null; list.scrollTop = 0; arrange(); });
$("clear").addEventListener("click", () => { for (const name of Object.keys(filters)) filters[name] = $(name).value = ""; arrange(); });

// The sheet: lines of known heights, of which only those in sight are in the page.

const HEAD = 36, SAYS = all.some((each) => each.camera) ? 101 : 84, GAP = 10;
document.body.style.setProperty("--says", `${SAYS}px`);
let shown = [], place = new Map(), lines = [], columns = 1, cardHeight = 0, current = all[0] || null;
const list = $("pictures"), sheet = $("sheet"), drawn = new Map();

function el(kind, name, text) {
  const made = document.createElement(kind);
  if (name) made.className = name;
  if (text != null) made.textContent = text;
  return made;
}

const count = (pictures) => `${pictures.length} picture${pictures.length === 1 ? "" : "s"}`;

function arrange() {
  const width = Math.max(list.clientWidth - (innerWidth <= 560 ? 16 : 28), 100);
  columns = Math.max(1, Math.floor((width + GAP) / ((innerWidth <= 560 ? 150 : 230) + GAP)));
  const card = (width - GAP * (columns - 1)) / columns;
  cardHeight = Math.round(card * 2 / 3) + SAYS;
  lines = []; shown = []; place = new Map();
  let top = 6, alone = [];
  const put = (pictures) => {
    for (let at = 0; at < pictures.length; at += columns) {
      lines.push({ top, height: cardHeight, pictures: pictures.slice(at, at + columns) });
      for (const each of pictures.slice(at, at + columns)) { place.set(each, { line: lines.length - 1, number: shown.length }); shown.push(each); }
      top += cardHeight + GAP;
    }
  };
  const head = (name, small) => { lines.push({ top, height: HEAD, name, small }); top += HEAD; };
  const flush = () => {
    if (alone.length && groups.some((each) => each.name != null)) head("Alone", count(alone));
    put(alone); alone = [];
  };
  const order = $("order").value;
  if (order) put(all.filter(fits).sort((a, b) => (a.score == null) - (b.score == null) || (order === "best" ? b.score - a.score : a.score - b.score)));
  for (const group of order ? [] : groups) {
    const pictures = group.pictures.filter(fits);
    if (!pictures.length) continue;
    if (group.name == null) { alone.push(...pictures); continue; }
    flush();
    const time = (group.pictures.map((each) => each.taken).filter(Boolean).sort()[0] || "").replace("T", " ").slice(0, 19);
    head(`Group ${group.name}`, count(group.pictures) + (time && ` · ${time}`));
    const best = bestOf(group);
    put([...pictures.filter((each) => each === best), ...pictures.filter((each) => each !== best)]);
  }
  flush();
  sheet.style.height = `${top}px`;
  for (const made of drawn.values()) made.remove();
  drawn.clear();
  if (!shown.length) { sheet.replaceChildren(el("p", "none", "No picture fits these filters.")); } else sheet.replaceChildren();
  if (!place.has(current)) current = shown[0] || null;
  draw(); counts(); follow(false);
}

function draw() {
  const from = list.scrollTop - 600, to = list.scrollTop + list.clientHeight + 600;
  let low = 0, high = lines.length;
  while (low < high) { const middle = (low + high) >> 1; if (lines[middle].top + lines[middle].height < from) low = middle + 1; else high = middle; }
  const wanted = new Set(current ? [place.get(current).line] : []);  // the list names it as the active one
  for (let at = low; at < lines.length && lines[at].top < to; at++) wanted.add(at);
  for (const at of [...wanted].sort((a, b) => a - b)) if (!drawn.has(at)) { drawn.set(at, line(lines[at])); sheet.append(drawn.get(at)); }
  for (const [at, made] of drawn) if (!wanted.has(at)) { made.remove(); drawn.delete(at); }
}

function line(of) {
  const made = el("div", of.name ? "group" : "line");
  made.setAttribute("role", of.name ? "presentation" : "none");
  made.style.top = `${of.top}px`;
  made.style.height = `${of.height}px`;
  if (of.name) made.append(`${of.name} `, el("small", "", of.small));
  else {
    made.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    made.append(...of.pictures.map(card));
  }
  return made;
}

function card(picture) {
  const made = el("div", "card");
  made.id = `p${place.get(picture).number}`;
  made.setAttribute("role", "option");
  made.setAttribute("aria-setsize", shown.length);
  made.setAttribute("aria-posinset", place.get(picture).number + 1);
  const shot = el("div", "shot"), image = el("img");
  image.alt = ""; image.decoding = "async"; image.loading = "lazy"; image.draggable = false;
  if (picture.thumb) { image.src = picture.thumb; shot.append(image); }
  if (picture.verdict === "failed") shot.append(el("p", "", picture.reason));
  const says = el("div", "says");
  made.append(shot, says);
  made.addEventListener("click", (event) => {
    go(picture); list.focus({ preventScroll: true });
    if (shot.contains(event.target) && matchMedia("(max-width: 560px), (pointer: coarse)").matches) closer([picture]);
  });
  made.addEventListener("dblclick", () => closer([picture]));
  fill(made, picture);
  return made;
}

function fill(made, picture) {
  const verdict = verdictOf(picture), { verdict: mine, stars } = opinion(picture);
  made.dataset.verdict = verdict || "";
  made.classList.toggle("current", picture === current);
  made.setAttribute("aria-selected", String(picture === current));
  const best = picture.group != null && bestOf(picture.of) === picture;
  const title = el("span");
  title.append(el("b", verdict, capital(WORDS[verdict])), mine ? " (you)" : "", best ? " · best" : "",
    stars ? ` · ${"★".repeat(stars)}` : "", picture.not_judged ? ` · ${picture.not_judged}` : picture.score == null ? "" : ` · ${picture.score.toFixed(1)}`);
  const said = sentences(picture.reason, picture.advice);
  const why = mine ? `The program: ${WORDS[picture.verdict]}; ${said}` : said;
  made.lastChild.replaceChildren(title, el("span", "name", picture.file), el("span", "camera", picture.camera), el("span", "why", verdict === "failed" ? "" : why));
  made.title = sentences(why, picture.why);
  made.setAttribute("aria-label", [picture.file, WORDS[verdict], mine ? "decided by you" : "", best ? "best of its group" : "",
    picture.group != null ? `group ${picture.group}` : "", stars ? `${stars} stars` : "", picture.faults.map((pair) => pair.join(" ")).join(", "), why].filter(Boolean).join(", "));
}

function refresh() {  // in place: what a filter would hide stays until the filters are set again
  for (const [at, made] of drawn) if (lines[at].pictures) lines[at].pictures.forEach((picture, n) => fill(made.children[n], picture));
  counts();
  if ($("closer").open) captions();
}

function counts() {
  const found = { keep: 0, alternate: 0, reject: 0, look: 0, failed: 0 }, named = groups.filter((each) => each.name != null).length;
  for (const picture of all) found[verdictOf(picture)] += 1;
  $("counts").textContent = `${shown.length === all.length ? "" : `${shown.length} of `}${count(all)} · ${named} group${named === 1 ? "" : "s"} · `
    + Object.entries(found).map(([name, count]) => `${count} ${WORDS[name]}`).join(" · ") + ` · ${all.filter(isMine).length} by you`;
}

const tell = (text) => { $("told").textContent = text; };

// Moving and deciding.

function go(picture) {
  if (!picture || !place.has(picture)) return;
  current = picture;
  follow(true);
}

function follow(scrolls) {
  if (!current) { list.removeAttribute("aria-activedescendant"); return; }
  const at = lines[place.get(current).line], above = at.top - HEAD - 8, below = at.top + at.height + 8 - list.clientHeight;
  if (scrolls && list.scrollTop > above) list.scrollTop = Math.max(above, 0);
  else if (scrolls && list.scrollTop < below) list.scrollTop = below;
  draw();
  for (const [number, made] of drawn) if (lines[number].pictures) lines[number].pictures.forEach((picture, n) => {
    made.children[n].classList.toggle("current", picture === current);
    made.children[n].setAttribute("aria-selected", String(picture === current));
  });
  list.setAttribute("aria-activedescendant", `p${place.get(current).number}`);
}

const step = (by) => go(shown[Math.min(Math.max(place.get(current).number + by, 0), shown.length - 1)]);

function stepLine(by) {
  const { line: at } = place.get(current), column = lines[at].pictures.indexOf(current);
  let next = at + by;
  while (lines[next] && !lines[next].pictures) next += by;
  if (lines[next]) go(lines[next].pictures[Math.min(column, lines[next].pictures.length - 1)]);
}

function stepGroup(by) {
  const own = current.of;
  let number = place.get(current).number;
  while (shown[number] && (shown[number].of === own || shown[number].group == null)) number += by;
  if (!shown[number]) return;
  const group = shown[number].of;
  go(shown.find((each) => each.of === group));
}

function decide(fields, words) {
  if (!current.sha256) return tell(`${current.file}: could not be read, so there is nothing to decide`);
  change([[current, fields]]);
  tell(`${current.file}: ${words}`);
}

const NEXT = "agentic-iqa gallery next";
try { $("next").checked = localStorage.getItem(NEXT) !== "no"; } catch { /* as above */ }
$("next").addEventListener("change", () => {
  try { localStorage.setItem(NEXT, $("next").checked ? "yes" : "no"); } catch { /* as above */ }
  list.focus();
});

function judge(verdict) {
  decide({ verdict }, verdict);
  if (!$("next").checked || !current.sha256) return;
  step(1);
  if ($("closer").open) again();
}

const unrejected = (picture) => (decided(picture).verdict === "reject" ? { verdict: null } : {});

function makeBest() {
  if (current.group == null) return tell("it is in no group");
  const before = current.of.pictures.filter((each) => each !== current && decided(each).best);
  change([[current, { best: true, ...unrejected(current) }], ...before.map((each) => [each, { best: false }])]);
  tell(`${current.file}: best of group ${current.group}`);
  if (!$("closer").open) arrange();
}

const ACTIONS = {
  ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: () => stepLine(1), ArrowUp: () => stepLine(-1),
  Home: () => go(shown[0]), End: () => go(shown[shown.length - 1]),
  PageDown: () => { for (let n = 0; n < 3; n++) stepLine(1); }, PageUp: () => { for (let n = 0; n < 3; n++) stepLine(-1); },
  " ": () => closer([current]), p: () => judge("keep"), x: () => judge("reject"),
  n: () => decide({ verdict: null, stars: 0, best: false }, "left to the program"), u: goBack, b: makeBest, s: save, f: () => $("verdict").focus(), g: () => stepGroup(1), G: () => stepGroup(-1),
  c: () => compare(), "?": () => $("keys").click(),
};
for (let stars = 0; stars <= 5; stars++) ACTIONS[stars] = () => decide({ stars, ...unrejected(current) }, `${stars} stars`);
const IN_CLOSER = {
  m: nextFault, "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), z: () => { factor = factor > 1.01 ? 1 : natural(); paint(); },
  " ": () => $("closer").close(), escape: () => $("closer").close(), c: () => (panes.length > 1 ? closer([current]) : compare()),
  ArrowRight: () => { step(1); again(); }, ArrowLeft: () => { step(-1); again(); }, ArrowDown: () => { step(1); again(); }, ArrowUp: () => { step(-1); again(); },
};

function act(key) {
  const name = key.length === 1 && !(key in ACTIONS) ? key.toLowerCase() : key;
  const action = ($("closer").open && IN_CLOSER[name]) || ACTIONS[name];
  if (!action || (!current && name !== "f" && name !== "?" && name !== "u")) return false;
  action();
  return true;
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select")) {
    if (event.key === "Escape") list.focus();
    return;
  }
  if (event.target.matches("button, input") && (event.key === " " || event.key === "Enter")) return;
  if (act(event.key)) event.preventDefault();
});
document.addEventListener("click", (event) => { const key = event.target.dataset && event.target.dataset.key; if (key) act(key); });
$("save").addEventListener("click", save);
$("keys").addEventListener("click", () => { $("help").hidden = !$("help").hidden; $("keys").setAttribute("aria-expanded", String(!$("help").hidden)); arrange(); });

// Closer, alone or beside the best: one zoom for both.

let panes = [], factor = 1, centre = [0.5, 0.5], looked = null, mapped = -1;  // the last: which of a picture's faults is shown in red

function redden({ picture, map }) {  // 3 x 3 pixels, which the browser blends as it enlarges them
  const pen = map.getContext("2d");
  map.width = map.height = 3;
  (picture.where[mapped] || []).forEach((share, n) => { pen.fillStyle = `rgb(214 40 40 / ${share * 0.6}%)`; pen.fillRect(n % 3, Math.floor(n / 3), 1, 1); });
}

function nextFault() {
  mapped = mapped + 1 < panes[panes.length - 1].picture.where.length ? mapped + 1 : -1;
  captions();
}

function compare() {
  const others = current.of.pictures.filter((each) => each !== current);
  if (!others.length) return tell("it is in no group");
  closer([bestOf(current.of) === current ? others[0] : bestOf(current.of), current]);
}

function again() { if (panes.length > 1 && current.of.pictures.length > 1) compare(); else closer([current]); }

function closer(pictures) {
  panes = pictures.map((picture) => {
    const figure = el("figure", "pane"), image = el("img"), caption = el("figcaption"), map = el("canvas");
    image.alt = picture.file; image.draggable = false;
    image.src = picture.preview || picture.thumb || "";
    figure.append(image, map, caption);
    return { picture, figure, image, map, caption, whole: false };
  });
  $("panes").replaceChildren(...panes.map((pane) => pane.figure));
  if (!$("closer").open) { factor = 1; looked = null; mapped = -1; $("closer").showModal(); }
  const { of } = pictures[pictures.length - 1];
  if (looked !== of) { looked = of; centre = [...bestOf(of).focus]; }  // within a group it stays
  captions(); paint();
}
$("closer").addEventListener("close", () => { arrange(); list.focus(); follow(true); });

function captions() {
  for (const pane of panes) {
    const { picture, caption } = pane, [red] = picture.faults[mapped] || [];
    redden(pane);
    const { stars } = opinion(picture), best = picture.group != null && bestOf(picture.of) === picture;
    caption.textContent = [red ? `In red: ${red}` : "", picture.file, WORDS[verdictOf(picture)], best ? "best" : "", stars ? "★".repeat(stars) : "", picture.reason, picture.why, picture.advice, picture.camera].filter(Boolean).join(" · ");
  }
}

const whole = () => 1 / (window.devicePixelRatio || 1);  // 100 %: a pixel of the picture is one of the screen
const fitted = (pane) => Math.min(pane.figure.clientWidth / pane.picture.width, pane.figure.clientHeight / pane.picture.height, whole());
const natural = () => whole() / fitted(panes[panes.length - 1]);

function zoom(by) { factor = Math.min(Math.max(factor * by, 1), 4 * natural()); paint(); }

function paint() {
  for (const pane of panes) {
    const { picture, figure, image, map } = pane, scale = fitted(pane) * factor;
    if (!pane.whole && picture.original && scale * Math.max(picture.width, picture.height) > 1.05 * data.preview * whole()) {
      pane.whole = true;  // the file itself; where the browser cannot show it, the preview stays
      const original = new Image();
      original.onload = () => { image.src = original.src; };
      original.src = picture.original;
    }
    const at = [[figure.clientWidth, picture.width], [figure.clientHeight, picture.height]].map(([room, side], axis) => {
      const size = side * scale;
      return size <= room ? (room - size) / 2 : Math.min(0, Math.max(room - size, room / 2 - centre[axis] * size));
    });
    for (const { style } of [image, map]) {
      style.width = `${picture.width}px`;
      style.height = `${picture.height}px`;
      style.transform = `translate(${at[0]}px, ${at[1]}px) scale(${scale})`;
    }
  }
  $("zoomed").textContent = `${Math.round(100 * factor / natural())} %`;
}

let grabbed = null;
$("panes").addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2); }, { passive: false });
$("panes").addEventListener("pointerdown", (event) => { grabbed = [event.clientX, event.clientY]; $("panes").setPointerCapture(event.pointerId); });
$("panes").addEventListener("pointermove", (event) => {
  if (!grabbed) return;
  const pane = panes[panes.length - 1], scale = fitted(pane) * factor;
  centre = [[event.clientX - grabbed[0], pane.picture.width], [event.clientY - grabbed[1], pane.picture.height]]
    .map(([moved, side], axis) => Math.min(1, Math.max(0, centre[axis] - moved / (side * scale))));
  grabbed = [event.clientX, event.clientY];
  paint();
});
$("panes").addEventListener("pointerup", () => { grabbed = null; });

list.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
addEventListener("resize", () => { arrange(); if ($("closer").open) paint(); });
arrange();
list.focus({ preventScroll: true });
document.documentElement.dataset.ready = "yes";
})();
