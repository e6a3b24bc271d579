// Client of the server's JSON API. Every action of the page is an API call that scripts can make too.
import { t } from "./strings.js";

let online = true;
function setOnline(now) {
  // the page shows a banner while the server is not responding
  if (now !== online) document.dispatchEvent(new CustomEvent("server", { detail: now }));
  online = now;
}

async function call(method, path, body, type = "application/json") {
  const headers = { "x-recollect": "1" };
  if (body !== undefined) headers["content-type"] = type;
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : type === "application/json" ? JSON.stringify(body) : body,
    });
  } catch {
    setOnline(false);
    throw Object.assign(new Error(t("server.gone")), { gone: true });
  }
  setOnline(true);
  if (answer.ok && answer.headers.get("content-disposition")) return answer.blob();
  if (answer.ok && answer.headers.get("content-type") === "application/octet-stream")
    return new Uint8Array(await answer.arrayBuffer());
  let value = {};
  try {
    value = await answer.json();
  } catch {
    /* reported as an error below */
  }
  if (!answer.ok)
    throw Object.assign(new Error(value.error || t("server.status", { status: String(answer.status) })), {
      status: answer.status,
    });
  return value;
}

// returns a filter as a URL parameter
export const only = (where, first = "?") => (where ? `${first}where=${encodeURIComponent(where)}` : "");

export const PAGE = 60; // tiles per request

export const api = {
  info: () => call("GET", "api/info"),
  addFolder: (folder) => call("POST", "api/folders", { folder }),
  addFile: (file) =>
    call("POST", `api/added?name=${encodeURIComponent(file.name)}`, file, file.type || "application/octet-stream"),
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
  removed: () => call("GET", "api/removed"),
  restore: (ids) => call("POST", "api/removed/restore", { ids }),
  exported: (what) => call("POST", "api/selection/export", what),
  showFile: (id) => call("POST", `api/show/${encodeURIComponent(id)}`),
  upload: (file) => call("POST", "api/pictures", file, file.type || "application/octet-stream"),
  item: (id) => call("GET", `api/items/${encodeURIComponent(id)}`),
  classes: () => call("GET", "api/classes"),
  create: (name, text) => call("POST", "api/classes", { name, text }),
  rename: (key, name) => call("POST", `api/classes/${key}/name`, { name }),
  drop: (key) => call("DELETE", `api/classes/${key}`),
  summary: (key, where) => call("GET", `api/classes/${key}${only(where)}`),
  mark: (key, ids, mark, listing) =>
    call("POST", `api/classes/${key}/marks`, { ids, mark, listing: { count: PAGE, ...listing } }),
  marks: (key, chosen, mark) => call("POST", `api/classes/${key}/marks`, { ...chosen, mark }),
  undo: () => call("POST", "api/undo"),
  redo: () => call("POST", "api/redo"),
  save: (name) => call("POST", "api/save", { name }),
  map: (where) => call("GET", `api/map${only(where)}`),
  mapGroups: (by, where) => call("GET", `api/map/groups?by=${by}${only(where, "&")}`),
  duplicates: (where, kind = "", start = 0) =>
    call("GET", `api/duplicates?kind=${kind}&start=${start}${only(where, "&")}`),
  findDuplicates: () => call("POST", "api/duplicates"),
  stopDuplicates: () => call("DELETE", "api/duplicates"),
};

export const thumb = (id) => `api/thumbs/${encodeURIComponent(id)}`;
export const picture = (id, full) => `api/pictures/${encodeURIComponent(id)}${full ? "?full=1" : ""}`;
export const original = (id) => `api/originals/${encodeURIComponent(id)}`;
export const named = (tile) => tile.caption || tile.name || tile.id;

export function element(kind, className, text) {
  const node = document.createElement(kind);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text; // never as HTML: captions and names are untrusted
  return node;
}

// replaces the contents of an element, keeping the focus on the same button
export function fill(place, contents) {
  const at = [...place.querySelectorAll("button")].indexOf(document.activeElement);
  place.replaceChildren(...contents);
  if (at >= 0) place.querySelectorAll("button")[at]?.focus();
}

// makes an image open on click, Enter and Space
export function opens(image, open) {
  Object.assign(image, { tabIndex: 0, role: "button" });
  image.addEventListener("click", open);
  image.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open();
    }
  });
  return image;
}

let hide;
export function notice(text) {
  const place = document.getElementById("notice");
  place.textContent = text;
  place.hidden = false;
  clearTimeout(hide);
  hide = setTimeout(() => {
    place.hidden = true;
  }, 6000);
}

// shows a notice with a button
export function offer(text, label, act) {
  notice(`${text} `);
  const button = element("button", "", label);
  button.addEventListener("click", () => {
    document.getElementById("notice").hidden = true;
    act();
  });
  document.getElementById("notice").append(button);
}

export const guarded =
  (action) =>
  async (...given) => {
    try {
      return await action(...given);
    } catch (error) {
      if (!error.gone) notice(error.message);
      return undefined;
    }
  };
