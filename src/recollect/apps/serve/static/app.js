// The page: state in one place, every action a call of the API.
import { api, element, guarded, notice, thumb } from "./api.js";
import { Classes } from "./classes.js";
import { Grid } from "./grid.js";
import { PictureMap } from "./map.js";
import { Episode, SearchBox } from "./search.js";
import { Sorted } from "./sorted.js";
import { Viewer } from "./viewer.js";

const get = (id) => document.getElementById(id);
const state = { version: 0, asked: null, listing: "search", left: 0 };
const status = (text) => { get("status").textContent = text; };

const viewer = new Viewer(guarded((version, tile, weight) => { view("grid"); return search.like(version, tile, weight); }));
const look = guarded((tile) => (tile ? viewer.open(state.version, tile) : undefined));
const grid = new Grid(get("grid"), { open: look, mark: guarded(clicked) });
const map = new PictureMap(get("map"), look);

const classes = new Classes((answer, options = {}) => {
  if (answer === null) { if (state.listing === "sorted") return; state.listing = "search"; if (state.asked) grid.show(state.asked, { label: classes.active, keep: true }); return; }
  view("grid");
  state.listing = options.mode; state.left = answer.total;
  grid.show(answer, { label: options.label });
  const said = { likely: "likeliest first", next: "what to label next", cut: "nearest to the cut first", clicked: "your clicks, latest first" }[options.mode];
  status(`${answer.total.toLocaleString()} pictures, ${said} (${answer.milliseconds} ms)`);
});

const episode = new Episode(look);
const sorted = new Sorted((answer) => {
  Object.assign(state, { listing: "sorted", version: answer.version });
  grid.show(answer, { label: classes.active });
  status(`${answer.total.toLocaleString()} pictures (${answer.milliseconds} ms)`);
});

const search = new SearchBox((answer, terms) => {
  view("grid");
  Object.assign(state, { asked: answer, listing: "search", version: answer.version });
  grid.show(answer, { label: classes.active });
  episode.show(answer);
  status(`${answer.total.toLocaleString()} pictures${terms ? ", best first" : ""}${cutOff(answer)} (${answer.milliseconds} ms)`);
});

// where the learnt cut-off lies; what is below is shown all the same, dimmed
function cutOff({ cut }) {
  if (!cut) return "";
  return `; ${cut.above.toLocaleString()} above the learnt cut ${cut.score.toFixed(3)}, which ${Math.round(100 * cut.share)} % of ${cut.captions.toLocaleString()} captions give their own picture`;
}

async function clicked(tile, mark, key = classes.active) {
  if (!tile) return;
  const earlier = tile.mark;
  const answer = await classes.mark(tile, mark, state.version, key);
  if (!answer) return;
  if (key !== classes.active || ["search", "sorted"].includes(state.listing)) { grid.refresh(); step(tile.mark !== 0 && earlier !== tile.mark); return; }
  if (state.listing === "next" && !(earlier === 0 && --state.left <= 0)) { grid.refresh(); step(true); return; }
  if (state.listing === "next") { state.left = answer.total; grid.show(answer, { label: key }); return; }
  if (state.listing === "clicked") { grid.refresh(); return; }
  grid.show(answer, { label: key, keep: true }); // sorted anew at once: the next picture comes under the same place
  status(`${answer.total.toLocaleString()} pictures, sorted anew (${answer.milliseconds} ms)`);
}

const step = (on) => { if (on) grid.move(grid.focus + 1); };

function view(which) {
  get("grid").hidden = which !== "grid" && which !== "sorted"; get("sorted").hidden = which !== "sorted"; get("episode").hidden = which !== "grid" || !episode.open; get("map-view").hidden = which !== "map"; get("duplicates").hidden = which !== "duplicates";
  for (const name of ["grid", "sorted", "map", "duplicates"]) {
    get(`show-${name}`).classList.toggle("chosen", name === which);
    get(`show-${name}`).setAttribute("aria-pressed", name === which);
  }
}

get("show-grid").addEventListener("click", () => {
  view("grid");
  if (state.listing === "sorted" && state.asked) { state.listing = "search"; grid.show(state.asked, { label: classes.active }); }
});
get("show-sorted").addEventListener("click", guarded(async () => { await sorted.load("doubtful"); view("sorted"); }));
get("show-map").addEventListener("click", guarded(async () => {
  view("map");
  status("drawing the map …");
  status(`Map of ${(await map.load(state.version), map.rows.length.toLocaleString())} pictures by ${map.method}; wheel or +/− zooms, drag or arrows move.`);
}));
get("show-duplicates").addEventListener("click", guarded(async () => {
  view("duplicates");
  status("looking for duplicates …");
  const { groups, note } = await api.duplicates();
  get("duplicates").replaceChildren(...groups.map(({ kind, pictures }) => {
    const group = element("div", "group");
    group.append(element("span", "kind", kind), ...pictures.map((tile) => {
      const figure = element("figure"), image = element("img");
      image.loading = "lazy"; image.src = thumb(state.version, tile.row); image.alt = tile.id;
      image.addEventListener("click", () => look(tile));
      figure.append(image, element("figcaption", "", tile.id));
      return figure;
    }));
    return group;
  }));
  status(note);
}));
get("toggle-classes").addEventListener("click", () => {
  const panel = get("panel");
  panel.hidden = !panel.hidden;
  get("toggle-classes").setAttribute("aria-expanded", !panel.hidden);
});

const moves = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: () => -grid.columns, ArrowDown: () => grid.columns, PageDown: () => 4 * grid.columns, PageUp: () => -4 * grid.columns, Home: () => -Infinity, End: () => Infinity };

document.addEventListener("keydown", (event) => {
  const { key } = event;
  if (event.target.matches("input, canvas") || get("viewer").open || get("grid").hidden) {
    if (key === "Escape") event.target.blur();
    return;
  }
  if ((event.ctrlKey || event.metaKey) && key.toLowerCase() === "z") { event.preventDefault(); classes.undo(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("button, a") && (key === " " || key === "Enter")) return;
  if (moves[key]) grid.move(grid.focus + moves[key]());
  else if (key === " ") clickedByKey(1);
  else if (key === "x") clickedByKey(-1);
  else if (key === "u") classes.undo();
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
  const changed = await classes.load().catch(() => false);
  if (!changed || classes.active === null) return;
  if (state.listing === "search") grid.show(state.asked, { label: classes.active, keep: true });
  else if (!["next", "sorted"].includes(state.listing)) await classes.rank(classes.mode);
}

guarded(async () => {
  if (matchMedia("(max-width: 700px)").matches) { get("panel").hidden = true; get("toggle-classes").setAttribute("aria-expanded", "false"); }
  const info = await api.info();
  get("memory").textContent = info.memory;
  get("where").title = `filter by ${info.filters.join(", ")}`;
  document.title = `${info.memory} · recollect`;
  if (info.damaged) notice(`${info.damaged} damaged lines of the click log were passed over.`);
  state.version = info.version;
  await classes.load();
  await search.run();
  get("grid").focus();
  setInterval(synchronise, 4000);
  document.addEventListener("visibilitychange", synchronise);
})();
