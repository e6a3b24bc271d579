// Main module: holds the state of the page; every action is an API call.
import * as address from "./address.js";
import { api, element, guarded, named, notice, only } from "./api.js";
import { Browse, Timeline, monthName } from "./browse.js";
import { Classes } from "./classes.js";
import { Duplicates } from "./duplicates.js";
import { Grid } from "./grid.js";
import { MapTools, PictureMap } from "./map.js";
import { Episode, SearchBox } from "./search.js";
import { Searches } from "./searches.js";
import { Selection } from "./select.js";
import { addFiles, help, libraries, settings } from "./settings.js";
import { Sorted } from "./sorted.js";
import { store, stored } from "./storage.js";
import { percent, t, translate } from "./strings.js";
import { Viewer } from "./viewer.js";

const FAVORITES = "Favorites"; // an ordinary label, so filters and exports include it
const get = (id) => document.getElementById(id);
translate(document);
const narrow = matchMedia("(max-width: 700px)");
// list: contents of the grid (the request, the answer, and a function that describes the answer); searched: the latest
// search; where: its filter, which applies to all lists and counts
const state = {
  arrange: "",
  version: 0,
  searched: null,
  list: null,
  listing: "search",
  left: 0,
  stale: false,
  where: "",
};
const where = () => state.where;
let late; // timer of the status of a request that takes long
// about: details, shown as a tooltip
const status = (text, about = "") => {
  clearTimeout(late);
  get("status").textContent = text;
  get("status").title = about;
};
const showStatus = (list) =>
  list
    ? status(
        list.describe(list.answer),
        [cutOff(list.answer), t("status.time", list.answer)].filter(Boolean).join("; "),
      )
    : status("");

let turn = 0;
// starts a request; returns a function that tells whether it is still the latest one; waiting: status, shown after some
// milliseconds
function begin(waiting, after = 0) {
  const mine = ++turn;
  clearTimeout(late);
  if (after) late = setTimeout(status, after, waiting);
  else if (waiting) status(waiting);
  return () => mine === turn;
}

const viewer = new Viewer(
  guarded((tile, weight) => search.like(tile, weight)),
  beside,
  guarded(stepped),
  { labels: () => classes.list, mark: guarded(labeled) },
);
const look = guarded(async (tile) => {
  if (!tile) return;
  const opened = viewer.dialog.open,
    shown = viewer.open(tile);
  remember(opened); // Back closes the viewer, however many pictures were viewed
  await shown;
});
viewer.dialog.addEventListener("close", () => {
  // update the address however the viewer was closed
  const rest = address.base(location.search);
  if (new URLSearchParams(location.search).has("open"))
    history.replaceState(null, "", rest ? `?${rest}` : location.pathname);
  if (viewer.marked) {
    viewer.marked = false;
    guarded(changed)();
  }
});
const grid = new Grid(get("grid"), {
  open: look,
  mark: guarded(clicked),
  pick: (...click) => selection.pick(...click),
  picked: (id) => selection.has(id),
});
const timeline = new Timeline(grid);
const map = new PictureMap(get("map"), look);
const duplicates = new Duplicates(get("duplicates"), { where, look, changed: () => renew(), classes: () => classes });

// returns the neighbor of a picture opened from the visible list
function beside(tile, by) {
  return get("grid").hidden || tile.id !== grid.current?.id ? undefined : grid.at(grid.focus + by);
}

function stepped(by) {
  const tile = beside(viewer.tile, by);
  if (!tile) return undefined;
  grid.move(grid.focus + by);
  return look(tile);
}

// keeps the address in sync with the page
let following = false; // true while the page is restored from the address, which must then not change
let shownView = "grid";
function remember(replace = false) {
  if (following) return;
  const listed = shownView === "grid" && state.listing !== "search" && state.listing !== "sorted";
  const now = address.write({
    ...search.asked(),
    facets: browse.chosen,
    arrange: state.arrange,
    view: shownView,
    label: classes.active,
    order: listed ? state.listing : null,
    show: sorted.chosen,
    open: viewer.dialog.open ? viewer.tile?.id : null,
  });
  const before = location.search || location.pathname;
  if (now === before) return;
  if (replace) history.replaceState(null, "", now);
  else history.pushState(null, "", now);
  if (shownView === "grid" && state.listing === "search") searches.note();
  else searches.draw();
}

async function follow() {
  // restores the page from the address
  const wanted = address.read();
  following = true;
  try {
    const same = followed === address.base(location.search);
    followed = address.base(location.search);
    if (!same) {
      if (viewer.dialog.open) viewer.dialog.close();
      browse.restore(wanted.facets);
      state.arrange = wanted.arrange;
      search.restore(wanted);
      classes.select(wanted.label);
      state.listing = "search";
      if (wanted.view === "grid") view("grid");
      await search.run();
      if (classes.active !== null && wanted.order) await classes.rank(wanted.order);
      else if (classes.active !== null) await classes.tell();
      if (wanted.view === "sorted") await sorted.load(wanted.show);
      else if (wanted.view !== "grid") await overviews[wanted.view]();
    }
    if ((wanted.open && viewer.tile?.id !== wanted.open) || (wanted.open && !viewer.dialog.open))
      await viewer.open({ id: wanted.open, caption: "" });
    if (!wanted.open && viewer.dialog.open) viewer.dialog.close();
  } finally {
    following = false;
  }
}
let followed = null;
addEventListener("popstate", guarded(follow));

function present(list, options = {}) {
  if (["search", "sorted"].includes(list.ask.order) && list.ask.label !== classes.active) {
    list.ask = { ...list.ask, label: classes.active };
    list.answer = { ...list.answer, tiles: null }; // these tiles show the marks of another label
  }
  Object.assign(state, { list, version: list.answer.version, stale: false });
  grid.show(list.answer, { ask: list.ask, ...options });
  list.answer = { ...list.answer, tiles: null }; // marks may change until the list is shown again
  for (const button of document.querySelectorAll("[data-show]")) {
    button.classList.toggle("chosen", button.dataset.show === state.listing);
    button.setAttribute("aria-pressed", button.dataset.show === state.listing);
  }
  empty(
    list.answer.total || list.ask.order !== "search"
      ? ""
      : list.answer.of
        ? t("empty.filter", { filter: list.ask.where ?? "" })
        : t(get("filling").hidden ? "empty.library" : "empty.indexing"),
  );
  showStatus(list);
  for (const id of ["sort", "show-scores"]) get(id).parentElement.hidden = list.ask.order !== "search";
  timeline.show(dates(list));
  remember();
}

// returns the months of a list sorted by date, for the timeline
function dates({ ask }) {
  if (ask.order !== "search" || ask.terms.length || !["newest", "oldest"].includes(ask.arrange) || !browse.counts)
    return [];
  const months = browse.counts.month.filter(([name]) => name.startsWith(browse.chosen.month ?? ""));
  return ask.arrange === "newest" ? months : months.toReversed();
}

// reloads the list after pictures were added or removed
async function renew() {
  const { list } = state;
  let answer;
  try {
    answer = list && (await api.list(list.ask));
  } catch (error) {
    if (error.status !== 400) throw error;
  }
  if (list !== state.list) return;
  if (!answer) {
    await search.run();
    return;
  } // no list, or an empty one: the search reports why
  list.answer = answer;
  if (list.ask.order === "search") limit(state.where, answer);
  if (get("grid").hidden) Object.assign(state, { stale: true, version: answer.version });
  else present(list, { keep: true });
}

get("grid").addEventListener("changed", ({ detail: answer }) => {
  // the grid noticed a change while scrolling
  state.list.answer = answer;
  state.version = answer.version;
  limit(state.where, answer);
  if (!get("grid").hidden) showStatus(state.list);
});

// shows why there are no pictures, with a button for the next step
function empty(text) {
  get("empty").hidden = !text;
  get("list").hidden = Boolean(text);
  get("empty-note").textContent = text;
  get("empty-off").hidden = state.list?.answer.of === 0 && !get("filling").hidden;
  get("empty-off").textContent = t(state.list?.answer.of === 0 ? "settings" : "scope.off");
}
get("empty-off").addEventListener("click", () =>
  state.list?.answer.of === 0 ? openSettings() : get("scope-off").click(),
);

function back(options) {
  // shows the latest search
  state.listing = "search";
  view("grid");
  if (state.searched) present(state.searched, options);
}

const classes = new Classes(
  begin,
  (answer, mode, ask, options) => {
    Object.assign(state, { listing: mode, left: answer.total });
    view("grid");
    const none = ["next", "clicked"].includes(mode);
    present(
      {
        answer,
        ask,
        describe: (found) =>
          t(found.total || !none ? `status.${mode}` : `status.${mode}.none`, {
            n: found.total,
            label: classes.activeName,
          }),
      },
      options,
    );
  },
  guarded(async (undone) => {
    await changed();
    if (undone && undone.class === undefined) await returned();
  }),
  where,
);

// updates the page after an undo restored pictures
async function returned() {
  await renew();
  if (!get("duplicates").hidden) await duplicates.refresh();
}

const selection = new Selection({
  classes,
  changed: async () => {
    await changed();
    await renew();
  },
});
selection.attach(grid);

// marks a picture in the viewer; the list behind it is updated when the viewer closes
async function labeled(tile, mark, key) {
  if (key === null) {
    notice(t("labels.choose"));
    return;
  }
  await api.mark(key, [tile.id], mark);
  const { name } = classes.list.find((each) => each.class === key);
  viewer.marked = true;
  if (mark > 0) notice(t("labels.marked", { label: name, name: named(tile) }));
  await Promise.all([classes.load(), viewer.load()]);
}

// toggles the label Favorites, which is created on first use
const favorite = guarded(async (tile) => {
  if (!tile) return;
  const key = await classes.named(FAVORITES),
    { labels } = await api.item(tile.id),
    on = labels.includes(FAVORITES);
  if (viewer.dialog.open) {
    await labeled(tile, on ? 0 : 1, key);
    return;
  }
  await api.mark(key, [tile.id], on ? 0 : 1);
  await classes.load();
  notice(t(on ? "favorite.off" : "favorite.on", { name: named(tile) }));
});
get("favorite").addEventListener("click", () => favorite(viewer.tile));

const mapTools = new MapTools(get("map-view"), map, { classes, where });
const episode = new Episode(look);
const sorted = new Sorted(
  begin,
  (answer, ask, options) => {
    state.listing = "sorted";
    view("sorted");
    present({ answer, ask, describe: (found) => t("pictures", { n: found.total }) }, options);
  },
  where,
  () => showStatus(state.list),
);

// saved and recent searches; searches by an uploaded picture have no address
const searches = new Searches({
  now: () => {
    const { words, terms, where: typed } = search.asked(),
      named = terms.map(({ name, weight }) => `${weight < 0 ? "−" : ""}${name || t("search.picture")}`);
    return {
      address: address.base(location.search),
      name: terms.some(({ upload }) => upload)
        ? ""
        : [...named, words, ...Object.values(browse.chosen), typed].filter(Boolean).join(", "),
    };
  },
  go: guarded(async (to) => {
    if (narrow.matches) sidebar(false);
    history.pushState(null, "", to ? `?${to}` : location.pathname);
    await follow();
    searches.note();
  }),
});

const browse = new Browse(
  () => get("where").value.trim(),
  () => search.run(),
);
const search = new SearchBox(
  begin,
  (answer, { ask, where: filter, current }) => {
    const describe = (found) =>
      [
        t(found.arranged !== undefined ? "status.arranged" : ask.terms.length ? "status.best" : "pictures", {
          n: found.total,
        }),
        ...(found.cut ? [t("status.end", { n: found.cut.above })] : []),
        ...(found.notes ?? []),
      ].join("; ");
    state.searched = { answer, ask, describe };
    limit(filter, answer);
    arrangement(ask);
    counted(answer.version);
    episode.show(answer);
    if (current || (state.listing === "search" && !get("grid").hidden)) back();
  },
  () => showStatus(state.list),
  {
    label: () => classes.active,
    filter: () => browse.filter,
    arrange: (searched) =>
      searched ? state.arrange || "score" : ["oldest", "name"].includes(state.arrange) ? state.arrange : "newest",
    failed: (reason) => {
      const known = reason.match(/; there are ([^;]+)$/)?.[1],
        none = [t("empty.filter", { filter: browse.filter }), known ? t("empty.names", { names: known }) : ""].join(
          " ",
        );
      state.list = state.searched = null;
      grid.show({ total: 0 }, { ask: {} }); // keys must not mark hidden pictures
      view("grid");
      empty(reason.includes("no picture satisfies") ? none.trim() : reason);
      status("");
    },
    add: addFiles,
    fresh: () => {
      state.arrange = "";
      if (narrow.matches) sidebar(false);
    },
  },
);

// updates the sort menu
function arrangement({ terms, arrange }) {
  get("sort").querySelector("[value=score]").hidden = !terms.length;
  get("sort").value = arrange;
  get("show-scores").parentElement.classList.toggle("idle", !terms.length);
}
get("sort").addEventListener(
  "change",
  guarded(() => {
    state.arrange = get("sort").value;
    return search.run();
  }),
);

// loads the counts in the sidebar after the pictures are shown
const counted = guarded(async (version) => {
  await browse.load(`${version}/${classes.revision}`);
  if (state.list) timeline.show(dates(state.list));
});

function sidebar(shown) {
  get("browse").hidden = !shown;
  get("toggle-browse").setAttribute("aria-expanded", shown);
  if (!narrow.matches) store("sidebar", shown ? "1" : "0");
}
get("toggle-browse").addEventListener("click", () => {
  if (narrow.matches) panel(false);
  sidebar(get("browse").hidden);
});
get("close-browse").addEventListener("click", () => sidebar(false));
get("size").addEventListener("input", () => {
  grid.resize(Number(get("size").value));
  store("size", get("size").value);
});
get("show-scores").addEventListener("change", () => {
  grid.scores = get("show-scores").checked;
  store("scores", grid.scores ? "1" : "0");
  grid.refresh();
});

// the filter applies to all lists, counts and exports, and is shown above every view
function limit(filter, { total, of }) {
  const other = filter !== state.where;
  state.where = filter;
  get("scope").hidden = !filter;
  const typed = get("where").value.trim();
  get("scope-note").textContent = typed
    ? t("scope", { filter: typed, n: total, of })
    : t("scope.some", { n: total, of });
  get("scope-chips").replaceChildren(
    ...Object.entries(browse.chosen).map(([name, value]) => {
      const chip = element("button", "term", `${name === "month" ? monthName(value) : value} ×`);
      chip.type = "button";
      chip.title = t("term.remove.named", { name: value });
      chip.addEventListener(
        "click",
        guarded(() => browse.choose(name, null)),
      );
      return chip;
    }),
  );
  for (const kind of ["csv", "parquet"])
    document.querySelector(`.links a[href*="labels.${kind}"]`).href = `api/labels.${kind}${only(filter)}`;
  get("links-note").textContent = filter ? t("scope.filtered") : "";
  if (other) classes.tell();
}
get("scope-off").addEventListener("click", () => {
  get("where").value = "";
  browse.chosen = {};
  search.run();
});

// describes the cut-off of the likely matches; pictures below it are dimmed
function cutOff({ cut, episode }) {
  if (!cut) return "";
  const why = t(`status.end.${cut.basis}`, { share: percent(cut.share), texts: cut.texts });
  return t(episode ? "status.end.refined" : "status.end.score", { score: cut.score.toFixed(3), why });
}

async function clicked(tile, mark, key = classes.active) {
  if (!tile || tile.busy === key) return; // pressed again before the response
  const earlier = tile.mark;
  tile.busy = key;
  let answer;
  try {
    answer = await classes.mark(tile, mark, key);
  } finally {
    tile.busy = undefined;
  }
  if (!answer) return;
  const list = { ...state.list, answer: answer.listing };
  if (key !== classes.active)
    status(t("labels.marked", { label: classes.list.find((each) => each.class === key)?.name, name: named(tile) })); // tiles show only marks of the active label
  if (key !== classes.active || ["search", "sorted"].includes(state.listing)) {
    grid.refresh();
    step(tile.mark !== 0 && earlier !== tile.mark);
    return;
  }
  if (state.listing === "next" && !(earlier === 0 && --state.left <= 0)) {
    grid.refresh();
    step(true);
    return;
  }
  if (state.listing === "next") {
    state.left = answer.listing.total;
    present(list);
    return;
  }
  if (state.listing === "clicked") {
    grid.refresh();
    return;
  }
  present(
    { ...list, describe: (found) => t("status.likely", { n: found.total, label: classes.activeName }) },
    { keep: true },
  ); // the next picture moves to this position
}

const step = (on) => {
  if (on) grid.move(grid.focus + 1);
};

// updates the list after a change of labels or marks elsewhere: now if the list is visible, else when it is shown
async function changed() {
  state.stale = get("grid").hidden;
  if (state.stale) return;
  if (state.listing === "sorted") await resort();
  else if (classes.active !== null && state.listing !== "search") await classes.rank(classes.mode, { keep: true });
  else {
    back({ keep: true });
    await classes.tell();
  }
}

async function resort() {
  // the chosen label may have been renamed or removed
  for (const show of new Set([sorted.chosen, "doubtful"])) {
    try {
      await sorted.load(show, { keep: true });
      return;
    } catch (error) {
      if (show === "doubtful") {
        notice(error.message);
        back();
      }
    }
  }
}

function view(which) {
  shownView = which;
  get("grid").hidden = which !== "grid" && which !== "sorted";
  get("sorted").hidden = which !== "sorted";
  get("map-view").hidden = which !== "map";
  get("duplicates").hidden = which !== "duplicates";
  if (!["grid", "sorted"].includes(which)) get("empty").hidden = true;
  get("size").hidden = get("grid").hidden;
  for (const id of ["sort", "show-scores"])
    get(id).parentElement.hidden = which !== "grid" || state.list?.ask.order !== "search";
  get("episode").hidden = which !== "grid" || state.listing !== "search" || !episode.open;
  for (const name of ["grid", "sorted", "map", "duplicates"]) {
    get(`show-${name}`).classList.toggle("chosen", name === which);
    get(`show-${name}`).setAttribute("aria-pressed", name === which);
  }
}

get("show-grid").addEventListener(
  "click",
  guarded(async () => {
    begin();
    if (state.listing === "sorted" || (state.listing === "search" && state.list !== state.searched)) {
      back();
      return;
    }
    view("grid");
    remember();
    showStatus(state.list);
    if (state.stale) await changed();
  }),
);
get("show-sorted").addEventListener(
  "click",
  guarded(() => {
    if (narrow.matches) panel(false);
    return sorted.load("doubtful");
  }),
);

const overviews = {};
const overview = (which, waiting, work) => {
  overviews[which] = guarded(async () => {
    const current = begin(waiting);
    status(waiting);
    if (narrow.matches) panel(false); // no room for both on a phone
    view(which);
    remember();
    let text = "";
    try {
      text = await work();
    } finally {
      if (current()) status(text);
    }
  });
  get(`show-${which}`).addEventListener("click", overviews[which]);
};
overview("map", t("map.drawing"), async () => {
  await map.load(state.version, state.where);
  await mapTools.paint();
  const { of } = map,
    n = map.ids.length;
  return t(n < of ? "map.status.part" : "map.status", { n, of });
});
overview("duplicates", "", async () => {
  await duplicates.load();
  return "";
});
function panel(shown) {
  get("panel").hidden = !shown;
  get("toggle-classes").setAttribute("aria-expanded", shown);
}
get("toggle-classes").addEventListener("click", () => panel(get("panel").hidden));

const moves = {
  ArrowLeft: () => grid.focus - 1,
  ArrowRight: () => grid.focus + 1,
  ArrowUp: () => grid.beyond(-1),
  ArrowDown: () => grid.beyond(1),
  PageDown: () => grid.beyond(4),
  PageUp: () => grid.beyond(-4),
  Home: () => 0,
  End: () => Infinity,
};

document.addEventListener("keydown", (event) => {
  const { key } = event;
  if (viewer.dialog.open && !document.querySelector("dialog.question")) {
    viewed(event);
    return;
  }
  if (
    event.target.matches("input:not([type=range], [type=checkbox]), select") ||
    document.querySelector("dialog[open]")
  ) {
    if (key === "Escape") event.target.blur();
    return;
  }
  if ((event.ctrlKey || event.metaKey) && key.toLowerCase() === "z") {
    event.preventDefault();
    if (event.shiftKey) classes.redo();
    else classes.undo();
    return;
  }
  if (key === "?") {
    event.preventDefault();
    help();
    return;
  }
  if (get("grid").hidden) return;
  if ((event.ctrlKey || event.metaKey) && key.toLowerCase() === "a") {
    event.preventDefault();
    selection.all();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("button, a, summary, [role=button]") && (key === " " || key === "Enter")) return;
  if (moves[key]) grid.move(moves[key]());
  else if (key === " ") clickedByKey(1);
  else if (key === "x") clickedByKey(-1);
  else if (key === "u") classes.undo();
  else if (key === "r") classes.redo();
  else if (key === "Enter") look(grid.current);
  else if (key === "f") favorite(grid.current);
  else if (key === "s") selection.toggle(grid.focus);
  else if (key === "Escape") selection.clear();
  else if (key === "/") get("words").focus();
  else if (/^[1-9]$/.test(key) && classes.list[key - 1]) clickedByKey(1, classes.list[key - 1].class);
  else return;
  event.preventDefault();
});

get("skip").addEventListener("click", () => get(get("grid").hidden ? "show-grid" : "grid").focus());

// handles keys while a picture is open
function viewed(event) {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input")) return;
  if (key === "ArrowLeft" || key === "ArrowRight") stepped(key === "ArrowLeft" ? -1 : 1);
  else if ((key === " " || key === "Enter") && target.matches("button, a")) return;
  else if (key === " " || key === "x") guarded(labeled)(viewer.tile, key === "x" ? -1 : 1, classes.active);
  else if (/^[1-9]$/.test(key) && classes.list[key - 1]) guarded(labeled)(viewer.tile, 1, classes.list[key - 1].class);
  else if (key === "f") favorite(viewer.tile);
  else if (key === "u") classes.undo();
  else if (!viewer.key(key)) return;
  event.preventDefault();
}

// does nothing for a picture that is not loaded yet, since the user cannot have judged it
const clickedByKey = guarded((mark, key) => clicked(grid.current, mark, key));

// checks for marks from other tabs and index changes by other processes
async function synchronize() {
  if (document.hidden) return;
  const active = classes.active,
    marked = await classes.load();
  if (marked && state.list && classes.active === active && ["next", "sorted"].includes(state.listing))
    present(state.list, { keep: true }); // keep the pictures in place under the pointer
  else if (marked && (active !== null || classes.active !== null)) await changed();
  const info = await api.info();
  fillingShown(info);
  const learned = info.ends !== state.ends; // a new cut-off of searches
  state.ends = info.ends;
  if (info.version !== state.version || (learned && state.list?.ask.order === "search")) await renew();
  if (!state.list) state.version = info.version;
  if (browse.filter === state.where) await counted(info.version); // not while a filter is being typed
}

// shows progress while a folder is indexed
function fillingShown({ filling, unreadable }) {
  if (!filling && !get("filling").hidden && unreadable) notice(t("unreadable", { n: unreadable }));
  get("filling").hidden = !filling;
  if (!filling) return;
  const { done, total, note } = filling,
    bar = get("filling-bar");
  if (total) Object.assign(bar, { max: total, value: done });
  else bar.removeAttribute("value");
  get("filling-note").textContent = note || (total ? t("indexing", { done, total }) : t("indexing.start"));
}

document.addEventListener("server", ({ detail: online }) => {
  get("banner").hidden = online;
  get("banner").textContent = t("server.gone");
  if (online) {
    notice(t("server.back"));
    grid.retry();
    if (search.missed) search.run();
  }
});

for (const id of ["memory", "open-libraries"]) get(id).addEventListener("click", guarded(libraries));
const openSettings = guarded(async () => settings(await api.info()));
get("open-settings").addEventListener("click", openSettings);
get("open-help").addEventListener("click", help);

async function watch() {
  await guarded(synchronize)();
  setTimeout(watch, get("filling").hidden ? 4000 : 1000);
}

guarded(async () => {
  panel(!narrow.matches);
  sidebar(!narrow.matches && stored("sidebar") !== "0");
  grid.size = Number((get("size").value = stored("size") ?? get("size").value));
  grid.scores = get("show-scores").checked = stored("scores") === "1";
  const info = await api.info();
  get("memory").textContent = info.name;
  document.title = `${info.name} · recollect`;
  if (info.damaged) notice(t("labels.damaged", { n: info.damaged }));
  Object.assign(state, { version: info.version, ends: info.ends });
  fillingShown(info);
  await classes.load();
  await searches.load();
  followed = null;
  await follow();
  searches.note();
  followed = address.base(location.search);
  get("grid").focus();
  setTimeout(watch, info.filling ? 1000 : 4000);
  document.addEventListener("visibilitychange", guarded(synchronize));
  const { filters, cannot_adapt: reason } = await api.filters();
  get("where").title = t("search.filter.title", { names: filters.join(", ") });
  search.canAdapt(reason);
})();
