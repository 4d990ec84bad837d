(function () {
"use strict";
const $ = (id) => document.getElementById(id);
let misses = [];
let current = 0;
let sending = Promise.resolve();  // answers arrive in the order they were given
const WHO = { p: "people", r: "program", n: "neither" };
const isScore = (value) => typeof value === "number";
const shown = (value) => (isScore(value) ? value.toFixed(1) : value);

function show() {
  const miss = misses[current];
  const scored = isScore(miss.people);
  $("picture").alt = `Picture ${current + 1}: ${miss.id}`;
  $("picture").src = `/picture/${current}`;
  $("question").hidden = !miss.query;
  $("question").textContent = miss.query || "";
  $("options").hidden = !miss.options;
  $("options").replaceChildren(...Object.entries(miss.options || {}).map(([letter, text]) => {
    const line = document.createElement("li");
    line.textContent = `${letter}. ${text}`;
    return line;
  }));
  $("judge").textContent = miss.judge === "people" ? "People" : `Label (${miss.judge})`;
  $("people").textContent = shown(miss.people);
  $("program").textContent = shown(miss.program);
  if (scored && miss.low !== null) {
    const likely = document.createElement("small");
    likely.textContent = `likely ${shown(miss.low)} to ${shown(miss.high)}`;
    $("program").append(likely);
  }
  $("reason").textContent = miss.reason;
  $("own").hidden = !scored;
  $("kept").textContent = "";
  $("back").disabled = current === 0;
  $("next").disabled = current === misses.length - 1;
  press();
}

function press() {
  const opinion = misses[current].opinion || {};
  for (const button of document.querySelectorAll("[data-who]")) button.setAttribute("aria-pressed", opinion.who === button.dataset.who);
  for (const button of document.querySelectorAll("[data-stars]")) button.setAttribute("aria-pressed", opinion.mos === Number(button.dataset.stars));
  $("progress").textContent = `${current + 1} of ${misses.length}, ${misses.filter((miss) => miss.opinion && miss.opinion.who).length} answered`;
}

function choose(change) {
  const number = current, miss = misses[number];
  const opinion = { who: null, mos: null, ...miss.opinion, ...change };
  if (opinion.who === "people") opinion.mos = null;
  miss.opinion = opinion;
  press();
  if (!opinion.who) {
    tell("Now say who is right: an own score alone is not kept.");
    return;
  }
  sending = sending.then(() => send(number, opinion));
}

async function send(number, opinion) {
  let text, isKept = false;
  try {
    const response = await fetch("/answer", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ number, ...opinion }),
    });
    const said = await response.json();
    isKept = response.ok;
    text = isKept ? said.kept : said.error;
  } catch { text = "the program is not there any more: start it again, and answer once more"; }
  const miss = misses[number];
  if (isKept) miss.kept = opinion;
  else if (miss.opinion === opinion) miss.opinion = miss.kept;
  if (number !== current && isKept) return;
  press();
  tell(isKept ? text : `Picture ${number + 1} is not kept: ${text}`, !isKept);
}

function tell(text, isBad = false) {
  $("kept").textContent = text;
  $("kept").classList.toggle("bad", isBad);
}

function go(step) {
  const place = current + step;
  if (place < 0 || place >= misses.length) return;
  current = place;
  show();
}

function resize() { $("size").setAttribute("aria-pressed", $("frame").classList.toggle("own")); }

function stars(mos) {
  const miss = misses[current], opinion = miss.opinion || {};
  if (!isScore(miss.people)) return;
  if (opinion.who === "people") tell("People are right: there is no other score. Press R or N first.");
  else choose({ mos: opinion.mos === mos ? null : mos });
}

document.addEventListener("keydown", (event) => {
  if (!misses.length || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toLowerCase();
  if (key in WHO) choose({ who: WHO[key] });
  else if ("12345".includes(key)) stars(Number(key));
  else if (key === "arrowright") go(1);
  else if (key === "arrowleft") go(-1);
  else if (key === "z") resize();
  else return;
  event.preventDefault();
});
for (const button of document.querySelectorAll("[data-who]")) button.onclick = () => choose({ who: button.dataset.who });
for (const button of document.querySelectorAll("[data-stars]")) button.onclick = () => stars(Number(button.dataset.stars));
$("back").onclick = () => go(-1);
$("next").onclick = () => go(1);
$("size").onclick = resize;
$("picture").onload = () => { $("picture").hidden = false; $("unshown").hidden = true; };
$("picture").onerror = async () => {
  const number = current, response = await fetch(`/picture/${number}`);
  if (number !== current) return;
  $("picture").hidden = true;
  $("unshown").hidden = false;
  $("unshown").textContent = response.ok ? "This browser cannot show the picture." : (await response.json()).error;
};

fetch("/misses").then((response) => response.json()).then((answer) => {
  misses = answer.misses.map((miss) => ({ ...miss, kept: miss.opinion }));
  document.title = ["Who is right?", answer.rater].join(" ").trim();
  const open = misses.findIndex((miss) => !miss.opinion);
  current = open < 0 ? 0 : open;
  show();
});
}());
