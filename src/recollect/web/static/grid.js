// A grid of any number of tiles. Only visible tiles exist; pages of the list are fetched as they come near.
import { PAGE, api, element, named, notice, thumb } from "./api.js";
import { t } from "./strings.js";

const KEPT_PAGES = 40, FOOT = 26;
const TALLEST = 8_000_000; // pixels; browsers end near 16 or 33 million, and a million rows in two columns need more

const sorted = ({ says, possible }) => (says === null ? t("tile.none") : possible.length > 1 ? t("tile.or", { name: says, others: possible.filter((name) => name !== says).join(", ") }) : says);

let made = 0; // numbers the tiles, so that screen readers can name the active one

export class Grid {
  constructor(place, { open, mark }) {
    Object.assign(this, { place, open, mark, total: 0, columns: 1, side: 160, focus: 0, tiles: new Map(), free: [], pages: new Map() });
    this.space = element("div", "space");
    place.append(this.space);
    place.addEventListener("scroll", () => this.schedule(), { passive: true });
    place.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    new ResizeObserver(() => this.layout()).observe(place);
  }

  // ask: the list that `answer` has the first tiles of; keep: stay at the same place, as after a mark that changes the order
  show(answer, { ask, keep = false } = {}) {
    const label = ask.label ?? null;
    Object.assign(this, { ask, label, version: answer.version, revision: answer.revision, total: answer.total, end: answer.cut?.above ?? Infinity, pages: new Map() });
    if (answer.tiles && !answer.start) this.pages.set(0, { tiles: answer.tiles });
    if (!keep) { this.focus = 0; this.top = 0; }
    this.focus = Math.max(0, Math.min(this.focus, this.total - 1));
    this.place.classList.toggle("teaching", label !== null);
    this.layout(!keep);
  }

  layout(toTop = false) {
    const width = this.place.clientWidth;
    if (!width) return;
    this.columns = Math.max(2, Math.floor(width / (width < 500 ? 118 : 172)));
    this.side = width / this.columns;
    this.rowHeight = this.side + FOOT;
    this.height = Math.ceil(this.total / this.columns) * this.rowHeight;
    this.shown = Math.min(this.height, TALLEST);
    this.space.style.height = `${this.shown}px`;
    if (toTop) this.place.scrollTop = 0;
    for (const [index, tile] of this.tiles) this.release(index, tile);
    this.draw();
  }

  get scale() { // pixels of the whole list for one pixel of the scroll bar
    const seen = this.place.clientHeight;
    return this.shown > seen ? (this.height - seen) / (this.shown - seen) : 1;
  }

  get offset() { return this.place.scrollTop * this.scale; }

  wheel(event) {
    if (this.height <= TALLEST || event.ctrlKey) return;
    event.preventDefault(); // a scaled scroll bar would leap; a wheel moves as in any other list
    const lines = event.deltaMode === 1 ? 40 : 1;
    this.exact = Math.max(0, (this.exact ?? this.offset) + event.deltaY * lines);
    this.place.scrollTop = this.exact / this.scale;
    this.draw();
  }

  schedule() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  draw() {
    if (!this.rowHeight) return;
    let top = this.offset;
    if (this.exact !== undefined && Math.abs(this.exact - top) <= this.scale) top = this.exact; else this.exact = undefined;
    const seen = this.place.clientHeight;
    const first = Math.max(0, Math.floor(top / this.rowHeight) - 1) * this.columns;
    const last = Math.min(this.total, (Math.ceil((top + seen) / this.rowHeight) + 1) * this.columns);
    for (const [index, tile] of this.tiles) if (index < first || index >= last) this.release(index, tile);
    for (let index = first; index < last; index++) this.put(index, top);
    this.fetch(first, last);
  }

  put(index, top) {
    let tile = this.tiles.get(index);
    if (!tile) {
      tile = this.free.pop() || this.make();
      this.tiles.set(index, tile);
      tile.index = index;
      tile.box.hidden = false;
      this.fill(tile);
    }
    const y = Math.floor(index / this.columns) * this.rowHeight - top + this.place.scrollTop;
    tile.box.style.transform = `translate(${(index % this.columns) * this.side}px, ${y}px)`;
    tile.box.style.width = `${this.side}px`;
    tile.box.style.height = `${this.rowHeight}px`;
    this.point(tile, index === this.focus);
  }

  make() {
    const box = element("div", "tile"), card = element("div", "card"), image = element("img"), words = element("div", "words");
    const foot = element("div", "foot"), before = element("span", "before"), score = element("span", "score"), caption = element("span", "caption"), marks = element("div", "marks");
    const yes = element("button", "yes", "✓"), no = element("button", "no", "✗");
    yes.setAttribute("aria-label", t("tile.yes")); no.setAttribute("aria-label", t("tile.no")); yes.tabIndex = no.tabIndex = -1;
    box.setAttribute("role", "option"); box.id = `tile-${++made}`;
    foot.append(before, score, caption); marks.append(yes, no); card.append(image, words, foot, marks); box.append(card);
    const tile = { box, image, words, before, score, caption, index: -1 };
    image.decoding = "async";
    image.addEventListener("error", () => { image.hidden = true; words.hidden = false; });
    image.addEventListener("click", () => { this.move(tile.index); this.open(this.at(tile.index)); });
    words.addEventListener("click", () => { this.move(tile.index); this.open(this.at(tile.index)); });
    yes.addEventListener("click", () => { this.move(tile.index); this.mark(this.at(tile.index), 1); });
    no.addEventListener("click", () => { this.move(tile.index); this.mark(this.at(tile.index), -1); });
    this.space.append(box);
    return tile;
  }

  fill(tile) {
    const known = this.at(tile.index);
    const { box, image, words, before, score, caption } = tile;
    box.classList.toggle("below", (known?.before ?? tile.index + 1) > this.end); // the cut is of the model as it is
    box.classList.toggle("yes", known?.mark === 1);
    box.classList.toggle("no", known?.mark === -1);
    const source = known ? thumb(known.id) : "";
    if (tile.source !== source) {
      tile.source = source;
      image.hidden = !source; words.hidden = true;
      if (source) image.src = source; else image.removeAttribute("src");
    }
    image.alt = known ? named(known) : "";
    words.textContent = known ? named(known) : "";
    const said = known?.p ?? null;
    score.textContent = said === null ? "" : `${Math.round(100 * said)}%`;
    before.textContent = known?.before && known.before !== tile.index + 1 ? `${tile.index + 1} ← ${known.before}` : "";
    if (known && known.says !== undefined) caption.textContent = sorted(known);
    else caption.textContent = known ? named(known) : "";
    for (const [name, value] of [["posinset", tile.index + 1], ["setsize", this.total], ["label", known ? [named(known), score.textContent, { 1: t("tile.yes"), "-1": t("tile.no") }[known.mark]].filter(Boolean).join(", ") : "…"]]) box.setAttribute(`aria-${name}`, value);
    const where = known ? [known.folder, known.name].filter(Boolean).join("/") || known.caption || known.id : "";
    box.title = known?.possible?.length ? t("tile.possible", { file: where, names: known.possible.join(", ") }) : where;
  }

  release(index, tile) {
    this.tiles.delete(index);
    this.point(tile, false);
    tile.box.hidden = true;
    this.free.push(tile);
  }

  // written only where it changes: every frame of scrolling comes by here
  point(tile, chosen) {
    if (tile.chosen === chosen) return;
    tile.chosen = chosen;
    tile.box.classList.toggle("focus", chosen);
    tile.box.setAttribute("aria-selected", chosen);
    if (chosen) this.place.setAttribute("aria-activedescendant", tile.box.id);
    else if (this.place.getAttribute("aria-activedescendant") === tile.box.id) this.place.removeAttribute("aria-activedescendant");
  }

  at(index) { return this.pages.get(Math.floor(index / PAGE))?.tiles?.[index % PAGE]; }

  async fetch(first, last) {
    for (let page = Math.floor(first / PAGE); page * PAGE < last; page++) {
      if (this.pages.has(page)) continue;
      const entry = {}, { ask, pages, version, revision } = this;
      pages.set(page, entry);
      while (pages.size > KEPT_PAGES) pages.delete(pages.keys().next().value);
      api.list({ ...ask, start: page * PAGE, version, revision }).then((answer) => {
        if (pages !== this.pages) return;
        if (answer.total !== this.total) { this.show(answer, { ask, keep: true }); this.place.dispatchEvent(new CustomEvent("changed", { detail: answer })); return; } // pictures came or went
        entry.tiles = answer.tiles;
        for (const tile of this.tiles.values()) if (Math.floor(tile.index / PAGE) === page) this.fill(tile);
        this.place.dispatchEvent(new CustomEvent("filled"));
      }, (error) => {
        if (pages !== this.pages) return;
        pages.delete(page);
        notice(error.message);
      });
    }
  }

  move(index) {
    if (!this.total) return;
    this.focus = Math.max(0, Math.min(index, this.total - 1));
    const y = Math.floor(this.focus / this.columns) * this.rowHeight, seen = this.place.clientHeight, top = this.offset;
    if (y < top) this.place.scrollTop = y / this.scale;
    else if (y + this.rowHeight > top + seen) this.place.scrollTop = (y + this.rowHeight - seen) / this.scale;
    this.draw();
  }

  refresh() { for (const tile of this.tiles.values()) this.fill(tile); }
  get current() { return this.at(this.focus); }
}
