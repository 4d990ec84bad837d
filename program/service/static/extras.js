// What a result can become besides: a file, a picture of differences, a table of many images.
import { LEVELS, el, nearest, tenth } from "./draw.js";

export function save(name, kind, content) {
  const link = el("a", { href: URL.createObjectURL(new Blob([content], { type: kind })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function inside(picture) {
  const canvas = el("canvas", { width: picture.naturalWidth, height: picture.naturalHeight });
  canvas.getContext("2d").drawImage(picture, 0, 0);
  return canvas.toDataURL("image/jpeg", 0.9);
}

// A page of its own: the answer as it is shown, with the picture inside; it fetches nothing.
export async function asPage(answer, picture, name) {
  const style = await (await fetch("assets/page.css")).text();
  const copy = document.implementation.createHTMLDocument("").importNode(answer, true); // which loads nothing
  for (const part of copy.querySelectorAll("button, .downloads, #map")) part.remove();
  for (const part of copy.querySelectorAll("details")) part.open = true;
  const maps = answer.querySelectorAll("img");
  copy.querySelectorAll("img").forEach((map, n) => { map.src = inside(maps[n]); });
  const shown = picture.naturalWidth ? `<img class="judged" alt="the image judged" src="${inside(picture)}">` : "";
  const policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'";
  const title = el("h1", {}, name).outerHTML; // escapes the name
  return `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${policy}">
<title>AgenticIQA</title><style>${style}</style></head>
<body><main class="docs"><section class="panel">${title}${shown}${copy.outerHTML}</section></main></body></html>`;
}

// Four times the difference of two pictures of one size; null where the sizes differ.
export function difference(image, reference) {
  const { naturalWidth: width, naturalHeight: height } = image;
  if (!width || width !== reference.naturalWidth || height !== reference.naturalHeight) return null;
  const canvas = el("canvas", { width, height, id: "difference", role: "img" });
  canvas.setAttribute("aria-label", "The difference from the reference, four times as strong; black where there is none");
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  pen.globalCompositeOperation = "difference";
  pen.drawImage(reference, 0, 0);
  pen.globalCompositeOperation = "lighter";
  for (const _ of [0, 1]) pen.drawImage(canvas, 0, 0); // each doubles what is there
  return canvas;
}

const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
// As program/common/cells.py makes cells: no spreadsheet takes one for a formula, and none holds control marks.
const control = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;
const code = (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`;
const guarded = (text) => (/^'*[\s=+\-@＝＋－＠]/.test(text) ? `'${text}` : text);
const nameCell = (name) => quoted(name.search(control) < 0 ? guarded(name) : JSON.stringify(name).replace(control, code));
const cell = (value) => quoted(guarded(String(value ?? "").replace(control, code)));
const words = (result) => `${result.not_judged ? `Not judged: ${result.not_judged}. ` : ""}${result.summary || result.final_answer}`;

// Judges many files one after the other and lists them, lowest score first; `open` shows one of them.
export async function many(files, ask, open, signal, tell) {
  const rows = [];
  const body = el("tbody");
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...["Image", "Score", "Why"].map((name) => el("th", { scope: "col" }, name)))), body);
  const csv = el("button", { type: "button", class: "quiet add", id: "csv", title: "A text that a spreadsheet would take for a formula begins with an apostrophe, which the program takes off when it reads the table" }, "Download CSV");
  csv.addEventListener("click", () => {
    const lines = rows.map(({ file, result, error }) => [nameCell(file.name), ...[result?.quality_score?.toFixed(3), ...(result?.score_interval ?? ["", ""]).map((end) => (end === "" ? "" : end.toFixed(3))),
      result?.level, result ? words(result) : "", error].map(cell)].join(","));
    save("agenticiqa.csv", "text/csv", ["image,score,low,high,level,reasoning,error", ...lines].join("\r\n"));
  });
  const list = () => body.replaceChildren(...rows.map((row) => {
    const name = el("button", { type: "button", class: "quiet link" }, row.file.name);
    name.addEventListener("click", () => open(row));
    const score = row.result?.quality_score ?? null;
    const verdict = score === null ? "" : `${tenth(score)} ${LEVELS[nearest(score) - 1]}`;
    return el("tr", {}, el("td", {}, name), el("td", {}, verdict), el("td", { class: row.error ? "failed" : "" }, row.error ?? words(row.result)));
  }));
  const box = el("div", {}, el("div", { class: "tablebox many" }, table), csv);
  tell(box, 0);
  for (const file of files) {
    const row = { file };
    try { row.result = await ask(file, signal); } catch (error) {
      if (error.name === "AbortError") break;
      row.error = error.message;
    }
    rows.push(row);
    rows.sort((a, b) => (a.result?.quality_score ?? 9) - (b.result?.quality_score ?? 9));
    list();
    tell(box, rows.length);
  }
}

const said = (score) => `${tenth(score)} of 5, ${LEVELS[nearest(score) - 1]}`;

// Says a comparison in a sentence.
export function told({ better, verdict, difference, probability_b_better: share }) {
  const sure = Math.max(share, 1 - share);
  const percent = sure > 0.99 ? "over 99 %" : `${Math.round(100 * sure)} %`; // nothing is certain
  const ahead = better && verdict.includes("better") ? `, by ${Math.abs(difference).toFixed(1)} points, ${percent} sure` : "";
  return `${verdict.charAt(0).toUpperCase()}${verdict.slice(1)}${ahead}.`;
}

// Draws a comparison of two files: the verdict, both pictures with their scores, what differs.
export function compared(result, files) {
  const pictures = files.map((file, i) => {
    const name = "AB"[i];
    const picture = el("img", { alt: `Image ${name}`, src: URL.createObjectURL(file) });
    for (const event of ["load", "error"]) picture.addEventListener(event, () => URL.revokeObjectURL(picture.src));
    picture.addEventListener("error", () => { picture.hidden = true; });
    const score = said(i ? result.score_b : result.score_a);
    const figure = el("figure", {}, picture, el("figcaption", {}, el("b", {}, `${name}: ${score}`), file.name || "pasted.png"));
    if (result.better === name && result.verdict.includes("better")) figure.setAttribute("aria-current", "true");
    return figure;
  });
  const reasons = el("ul", { class: "reasons" }, ...result.reasons.map((reason) => el("li", {}, reason)));
  return [el("p", { class: "verdict" }, told(result)), el("div", { class: "pair" }, ...pictures),
    el("section", { class: "block" }, el("h2", {}, "What differs"), reasons)];
}
