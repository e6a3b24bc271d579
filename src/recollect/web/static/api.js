// Calls of the server's API: every action of the page is one that a script could make too.
import { t } from "./strings.js";

let there = true;
function reached(now) { // the page says so above everything, until the server answers again
  if (now !== there) document.dispatchEvent(new CustomEvent("server", { detail: now }));
  there = now;
}

async function call(method, path, body, type = "application/json") {
  const headers = { "x-recollect": "1" };
  if (body !== undefined) headers["content-type"] = type;
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : type === "application/json" ? JSON.stringify(body) : body });
  } catch {
    reached(false);
    throw Object.assign(new Error(t("server.gone")), { gone: true });
  }
  reached(true);
  if (answer.ok && answer.headers.get("content-disposition")) return answer.blob();
  if (answer.ok && answer.headers.get("content-type") === "application/octet-stream") return new Uint8Array(await answer.arrayBuffer());
  let value = {};
  try { value = await answer.json(); } catch { /* an answer without JSON is an error below */ }
  if (!answer.ok) throw Object.assign(new Error(value.error || t("server.status", { status: String(answer.status) })), { status: answer.status });
  return value;
}

// a filter in an address
export const only = (where, first = "?") => (where ? `${first}where=${encodeURIComponent(where)}` : "");

export const PAGE = 60; // tiles of a page of a list

export const api = {
  info: () => call("GET", "api/info"),
  addFolder: (folder) => call("POST", "api/folders", { folder }),
  addFile: (file) => call("POST", `api/added?name=${encodeURIComponent(file.name)}`, file, file.type || "application/octet-stream"),
  libraries: () => call("GET", "api/libraries"),
  openLibrary: (place) => call("POST", "api/libraries", { place }),
  searches: () => call("GET", "api/searches"),
  saveSearch: (name, address) => call("POST", "api/searches", { name, address }),
  filters: () => call("GET", "api/filters"),
  list: (ask) => call("POST", "api/list", { count: PAGE, ...ask }),
  shapes: (ask) => call("POST", "api/shapes", ask),
  facets: (names, where) => call("GET", `api/facets?names=${names.join(",")}${only(where, "&")}`),
  ids: (ask) => call("POST", "api/ids", ask),
  plan: (chosen) => call("POST", "api/selection/plan", chosen),
  act: (what) => call("POST", "api/selection/act", what),
  exported: (what) => call("POST", "api/selection/export", what),
  showFile: (id) => call("POST", `api/show/${encodeURIComponent(id)}`),
  upload: (file) => call("POST", "api/pictures", file, file.type || "application/octet-stream"),
  item: (id) => call("GET", `api/items/${encodeURIComponent(id)}`),
  classes: () => call("GET", "api/classes"),
  create: (name, text) => call("POST", "api/classes", { name, text }),
  drop: (key) => call("DELETE", `api/classes/${key}`),
  summary: (key, where) => call("GET", `api/classes/${key}${only(where)}`),
  mark: (key, ids, mark, listing) => call("POST", `api/classes/${key}/marks`, { ids, mark, listing: { count: PAGE, ...listing } }),
  marks: (key, chosen, mark) => call("POST", `api/classes/${key}/marks`, { ...chosen, mark }),
  undo: () => call("POST", "api/undo"),
  redo: () => call("POST", "api/redo"),
  save: (name) => call("POST", "api/save", { name }),
  map: (where) => call("GET", `api/map${only(where)}`),
  mapGroups: (by, where) => call("GET", `api/map/groups?by=${by}${only(where, "&")}`),
  duplicates: (where, kind = "", start = 0) => call("GET", `api/duplicates?kind=${kind}&start=${start}${only(where, "&")}`),
  findDuplicates: () => call("POST", "api/duplicates"),
  stopDuplicates: () => call("DELETE", "api/duplicates"),
};

export const thumb = (id) => `api/thumbs/${encodeURIComponent(id)}`;
export const picture = (id, full) => `api/pictures/${encodeURIComponent(id)}${full ? "?full=1" : ""}`;
export const original = (id) => `api/originals/${encodeURIComponent(id)}`;
export const named = (tile) => tile.caption || tile.name || tile.id;

export function element(kind, className, text) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text; // never as HTML: captions and names may be anyone's texts
  return made;
}

// replaces the contents of a place; the button that had the focus keeps it
export function fill(place, contents) {
  const at = [...place.querySelectorAll("button")].indexOf(document.activeElement);
  place.replaceChildren(...contents);
  if (at >= 0) place.querySelectorAll("button")[at]?.focus();
}

// a picture that can be opened by mouse and by keys
export function opens(image, open) {
  Object.assign(image, { tabIndex: 0, role: "button" });
  image.addEventListener("click", open);
  image.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); } });
  return image;
}

let hide;
export function notice(text) {
  const place = document.getElementById("notice");
  place.textContent = text;
  place.hidden = false;
  clearTimeout(hide);
  hide = setTimeout(() => { place.hidden = true; }, 6000);
}

// a notice with a button that does something
export function offer(text, label, act) {
  notice(`${text} `);
  const button = element("button", "", label);
  button.addEventListener("click", () => { document.getElementById("notice").hidden = true; act(); });
  document.getElementById("notice").append(button);
}

export const guarded = (action) => async (...given) => {
  try { return await action(...given); } catch (error) { if (!error.gone) notice(error.message); return undefined; }
};
