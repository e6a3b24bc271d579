// The page: state in one place, every action a call of the API.
import { api, counted, element, guarded, notice, only, opens, thumb } from "./api.js";
import { Classes } from "./classes.js";
import { Grid } from "./grid.js";
import { PictureMap } from "./map.js";
import { Episode, SearchBox } from "./search.js";
import { Sorted } from "./sorted.js";
import { Viewer } from "./viewer.js";

const get = (id) => document.getElementById(id);
// list: what the grid shows, with how to ask for it again and what is said of an answer; searched: the latest search's;
// where: the filter of that, which limits every list and count
const state = { version: 0, searched: null, list: null, listing: "search", left: 0, stale: false, where: "" };
const where = () => state.where;
const status = (text) => { get("status").textContent = text; };
const said = (list) => (list ? list.said(list.answer) : "");

let turn = 0;
function begin(waiting) { // a question: says of its answer, however late it comes, whether nothing else was asked for since
  const mine = ++turn;
  if (waiting) status(waiting);
  return () => mine === turn;
}

const viewer = new Viewer(guarded((version, tile, weight) => search.like(version, tile, weight)), beside, guarded(stepped));
const look = guarded((tile) => (tile ? viewer.open(tile.version ?? state.version, tile) : undefined));
const grid = new Grid(get("grid"), { open: look, mark: guarded(clicked) });
const map = new PictureMap(get("map"), look);

// the picture before or behind one that was opened from the list that is seen
function beside(tile, by) {
  return get("grid").hidden || tile.row !== grid.current?.row ? undefined : grid.at(grid.focus + by);
}

function stepped(by) {
  const tile = beside(viewer.tile, by);
  if (!tile) return undefined;
  grid.move(grid.focus + by);
  return look(tile);
}

function present(list, options = {}) {
  Object.assign(state, { list, version: list.answer.version, stale: false });
  grid.show(list.answer, { label: classes.active, renew: () => renew(list), ...options });
  for (const button of document.querySelectorAll("[data-show]")) {
    button.classList.toggle("chosen", button.dataset.show === state.listing);
    button.setAttribute("aria-pressed", button.dataset.show === state.listing);
  }
  status(said(list));
}

async function renew(list) { // what is said of it too: the memory may hold others than before
  const { version } = list.answer;
  list.answer = await list.ask();
  state.version = list.answer.version;
  if (list === state.list && !get("grid").hidden) status(said(list));
  if (version !== state.version) classes.tell();
  return list.answer;
}

function back(options) { // to what was searched for last
  state.listing = "search";
  view("grid");
  if (state.searched) present(state.searched, options);
}

const classes = new Classes(begin, (answer, mode, ask, options) => {
  Object.assign(state, { listing: mode, left: answer.total });
  view("grid");
  const order = { likely: "best matches first", next: "suggested to mark", cut: "borderline first", clicked: "your marks, latest first" }[mode];
  const none = { next: ": all of these are marked", clicked: ": none of these is marked" }[mode];
  present({ answer, ask, said: ({ total, milliseconds }) => `${counted(total)}${total || !none ? `, ${order}` : none} (${milliseconds} ms)` }, options);
}, guarded(changed), where);

const episode = new Episode(look);
const sorted = new Sorted(begin, (answer, ask, options) => {
  state.listing = "sorted";
  view("sorted");
  present({ answer, ask, said: ({ total, milliseconds }) => `${counted(total)} (${milliseconds} ms)` }, options);
}, where);

const search = new SearchBox(begin, (answer, { count, ask, where: filter, current }) => {
  const told = (found) => `${counted(found.total)}${count ? ", best first" : ""}${cutOff(found)} (${found.milliseconds} ms)${(found.notes ?? []).map((note) => `; ${note}`).join("")}`;
  const again = async () => { const found = await ask(); limit(filter, found); return found; };
  state.searched = { answer, ask: again, said: told };
  limit(filter, answer);
  episode.show(answer);
  if (current || state.listing === "search" && !get("grid").hidden) back();
}, () => status(said(state.list)));

// what the filter leaves is all that is listed, counted and written from here on; it is said above whatever is shown
function limit(filter, { total, of }) {
  const other = filter !== state.where;
  state.where = filter;
  get("scope").hidden = !filter;
  get("scope-note").textContent = `Only where ${filter}: ${total.toLocaleString()} of ${of.toLocaleString()}. Lists, counts and exports cover only these.`;
  for (const kind of ["csv", "parquet"]) document.querySelector(`.links a[href*="labels.${kind}"]`).href = `/api/labels.${kind}${only(filter)}`;
  get("links-note").textContent = filter ? "(filtered)" : "";
  if (other) classes.tell();
}
get("scope-off").addEventListener("click", () => search.everything());

// where the learnt cut-off lies; what is below is shown all the same, dimmed
function cutOff({ cut, episode }) {
  if (!cut) return "";
  return `; ${cut.above.toLocaleString()} likely matches (score above ${cut.score.toFixed(3)}${episode ? " before refining" : ""}, as ${Math.round(100 * cut.share)} % of ${cut.captions.toLocaleString()} captions score with their own picture)`;
}

async function clicked(tile, mark, key = classes.active) {
  if (!tile) return;
  const earlier = tile.mark;
  const answer = await classes.mark(tile, mark, state.version, key);
  if (!answer) return;
  if (key === classes.active) grid.marked(answer.marked, tile.mark);
  if (key !== classes.active) status(`✓ for ${classes.list.find((each) => each.class === key)?.name}: ${tile.caption || tile.id}`); // which no tile shows
  if (key !== classes.active || ["search", "sorted"].includes(state.listing)) { grid.refresh(); step(tile.mark !== 0 && earlier !== tile.mark); return; }
  if (state.listing === "next" && !(earlier === 0 && --state.left <= 0)) { grid.refresh(); step(true); return; }
  const list = { ...state.list, answer };
  if (state.listing === "next") { state.left = answer.total; present(list); return; }
  if (state.listing === "clicked") { grid.refresh(); return; }
  present({ ...list, said: ({ total, milliseconds }) => `${counted(total)}, best matches first (${milliseconds} ms)` }, { keep: true }); // the next picture comes under the same place
}

const step = (on) => { if (on) grid.move(grid.focus + 1); };

// clicks or classes are others now, not by a click in the list: shown at once where the list is seen, else when it is
async function changed() {
  state.stale = get("grid").hidden;
  if (state.stale) return;
  if (state.listing === "sorted") await resort();
  else if (classes.active !== null && state.listing !== "search") await classes.rank(classes.mode, { keep: true });
  else { back({ keep: true }); await classes.tell(); }
}

async function resort() {
  try { await sorted.load(sorted.chosen, { keep: true }); } catch (error) { notice(error.message); back(); }
}

function view(which) {
  get("grid").hidden = which !== "grid" && which !== "sorted"; get("sorted").hidden = which !== "sorted"; get("map-view").hidden = which !== "map"; get("duplicates").hidden = which !== "duplicates";
  get("episode").hidden = which !== "grid" || state.listing !== "search" || !episode.open;
  for (const name of ["grid", "sorted", "map", "duplicates"]) {
    get(`show-${name}`).classList.toggle("chosen", name === which);
    get(`show-${name}`).setAttribute("aria-pressed", name === which);
  }
}

get("show-grid").addEventListener("click", guarded(async () => {
  begin();
  if (state.listing === "sorted" || state.listing === "search" && state.list !== state.searched) { back(); return; }
  view("grid");
  status(said(state.list));
  if (state.stale) await changed();
}));
get("show-sorted").addEventListener("click", guarded(() => { if (narrow.matches) panel(false); return sorted.load("doubtful"); }));

const overview = (which, waiting, work) => get(`show-${which}`).addEventListener("click", guarded(async () => {
  const current = begin(waiting);
  if (narrow.matches) panel(false); // a phone has no room for both
  view(which);
  let said = "";
  try { said = await work(); } finally { if (current()) status(said); }
}));
overview("map", "Drawing the map …", async () => `Map of ${(await map.load(state.version, state.where), map.rows.length.toLocaleString())}${map.rows.length < map.of ? ` of ${map.of.toLocaleString()}` : ""} ${map.of === 1 ? "picture" : "pictures"} by ${map.method}; wheel, +/− or two fingers zoom, drag or arrows move, a click or Enter opens.`);
overview("duplicates", "Looking for duplicates …", async () => {
  const { groups, note, version, more: rest } = await api.duplicates(state.where);
  get("duplicates").replaceChildren(...groups.map(({ kind, pictures, more }) => {
    const group = element("div", "group");
    group.append(element("span", "kind", kind), ...pictures.map((tile) => {
      const figure = element("figure"), image = element("img");
      image.loading = "lazy"; image.src = thumb(version, tile.row); image.alt = tile.id;
      figure.append(opens(image, () => look({ ...tile, version })), element("figcaption", "", tile.id));
      return figure;
    }));
    if (more) group.append(element("span", "kind", `and ${more.toLocaleString()} more`));
    return group;
  }));
  if (groups.length) get("duplicates").prepend(element("p", "hint", "To remove spare copies: recollect memory duplicates MEMORY --remove identical (or near-identical) shows what would go, and removes it with --yes."));
  if (rest) get("duplicates").append(element("p", "", `and ${rest.toLocaleString()} more groups`));
  if (!groups.length) get("duplicates").append(element("p", "", "No duplicates found."));
  return note;
});
const narrow = matchMedia("(max-width: 700px)");
function panel(shown) {
  get("panel").hidden = !shown;
  get("toggle-classes").setAttribute("aria-expanded", shown);
}
get("toggle-classes").addEventListener("click", () => panel(get("panel").hidden));

const moves = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: () => -grid.columns, ArrowDown: () => grid.columns, PageDown: () => 4 * grid.columns, PageUp: () => -4 * grid.columns, Home: () => -Infinity, End: () => Infinity };

// the memory, where its version is another: a list of its rows today
document.addEventListener("changed", ({ detail }) => { if (detail !== state.version) grid.again(); });

document.addEventListener("keydown", (event) => {
  const { key } = event;
  if (get("viewer").open && { ArrowLeft: 1, ArrowRight: 1 }[key]) { stepped(key === "ArrowLeft" ? -1 : 1); return; }
  if (event.target.matches("input, canvas") || get("viewer").open || get("grid").hidden) {
    if (key === "Escape") event.target.blur();
    return;
  }
  if ((event.ctrlKey || event.metaKey) && key.toLowerCase() === "z") { event.preventDefault(); if (event.shiftKey) classes.redo(); else classes.undo(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("button, a, summary, [role=button]") && (key === " " || key === "Enter")) return;
  if (moves[key]) grid.move(grid.focus + moves[key]());
  else if (key === " ") clickedByKey(1);
  else if (key === "x") clickedByKey(-1);
  else if (key === "u") classes.undo();
  else if (key === "r") classes.redo();
  else if (key === "Enter") look(grid.current);
  else if (key === "/") get("words").focus();
  else if (/^[1-9]$/.test(key) && classes.list[key - 1]) clickedByKey(1, classes.list[key - 1].class);
  else return;
  event.preventDefault();
});

// a key on a picture that is not shown yet does nothing: what nobody has seen is never marked
const clickedByKey = guarded((mark, key) => clicked(grid.current, mark, key));

async function synchronise() { // another tab may have clicked
  if (document.hidden) return;
  const active = classes.active;
  if (!await classes.load() || !state.list) return;
  if (classes.active === active && ["next", "sorted"].includes(state.listing)) present(state.list, { keep: true }); // marks; nothing moves under the hand
  else if (active !== null || classes.active !== null) await changed();
}

guarded(async () => {
  panel(!narrow.matches);
  const info = await api.info();
  get("memory").textContent = info.memory;
  document.title = `${info.memory} · recollect`;
  if (info.damaged) notice(`${counted(info.damaged, "change")} to your labels could not be read and ${info.damaged === 1 ? "is" : "are"} missing.`);
  state.version = info.version;
  await classes.load();
  await search.run();
  get("grid").focus();
  const { filters, cannot_adapt: reason } = await api.filters();
  get("where").title = `filter by ${filters.join(", ")}`;
  search.canAdapt(reason);
  setInterval(synchronise, 4000);
  document.addEventListener("visibilitychange", synchronise);
})();
