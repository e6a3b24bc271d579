// Justified rows of any number of tiles. Only visible tiles exist; pages of the list are fetched before they are visible.
import { PAGE, api, element, named, notice, thumb } from "./api.js";
import { t } from "./strings.js";

const KEPT_PAGES = 40,
  FOOT = 22,
  GAP = 4;
const TALLEST = 8_000_000; // pixels; browsers are limited to 16 or 33 million, and a million rows need more
const UNKNOWN = 148; // 4:3, until the shape of a picture is loaded
const RATIOS = Float32Array.from({ length: 256 }, (_, code) => Math.min(3, Math.max(0.45, 2 ** ((code - 128) / 48))));

const sorted = ({ says, possible }) =>
  says === null
    ? t("tile.none")
    : possible.length > 1
      ? t("tile.or", { name: says, others: possible.filter((name) => name !== says).join(", ") })
      : says;
const decoded = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

let tileCount = 0; // numbers the tiles, for aria-activedescendant

export class Grid {
  // open: opens a tile; mark: marks a tile; pick: handles a click that may select, returns whether it did; picked: whether
  // an id is selected
  constructor(place, { open, mark, pick, picked }) {
    Object.assign(this, {
      place,
      open,
      mark,
      pick,
      picked,
      total: 0,
      size: 190,
      focus: 0,
      tiles: new Map(),
      free: [],
      pages: new Map(),
      shapes: new Uint8Array(0),
      rows: 0,
    });
    this.space = element("div", "space");
    place.append(this.space);
    place.addEventListener("scroll", () => this.schedule(), { passive: true });
    place.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    new ResizeObserver(() => {
      if (place.clientWidth !== this.width) this.layout();
      else this.draw();
    }).observe(place);
  }

  // ask: the request whose answer has the first tiles; keep: keep the scroll position, for example after a mark
  show(answer, { ask, keep = false } = {}) {
    const label = ask.label ?? null;
    Object.assign(this, {
      ask,
      label,
      version: answer.version,
      revision: answer.revision,
      total: answer.total,
      end: answer.cut?.above ?? Infinity,
      pages: new Map(),
      shapesAsked: false,
    });
    if (answer.tiles && !answer.start) this.pages.set(0, { tiles: answer.tiles });
    if (answer.shapes !== undefined) this.shapes = decoded(answer.shapes);
    if (!keep) this.focus = 0;
    this.focus = Math.max(0, Math.min(this.focus, this.total - 1));
    this.place.classList.toggle("teaching", label !== null);
    this.layout(!keep);
  }

  resize(size) {
    this.size = size;
    this.layout();
  }

  // computes rows that fill the width, with heights close to the requested one
  layout(toTop = false) {
    const width = (this.width = this.place.clientWidth);
    if (!width) return;
    const { total, shapes } = this,
      wanted = width < 500 ? Math.min(this.size, width / 2.6) : this.size;
    const anchor =
      toTop || !this.rows
        ? null
        : [this.starts[this.rowAt(this.offset)], this.offset - this.tops[this.rowAt(this.offset)]];
    if (!this.starts || this.starts.length < total + 1)
      Object.assign(this, { starts: new Uint32Array(total + 1), tops: new Float64Array(total + 2) });
    const { starts, tops } = this;
    let row = 0,
      sum = 0,
      first = 0;
    const close = (next, full) => {
      const gaps = (next - first - 1) * GAP,
        height = full ? (width - gaps) / sum : Math.min(wanted, (width - gaps) / sum);
      starts[row] = first;
      tops[row + 1] = tops[row] + height + FOOT + GAP;
      row++;
      first = next;
      sum = 0;
    };
    for (let index = 0; index < total; index++) {
      const ratio = RATIOS[index < shapes.length ? shapes[index] : UNKNOWN],
        room = width - (index - first) * GAP;
      if (index > first && (sum + ratio) * wanted > room && room + GAP - sum * wanted < (sum + ratio) * wanted - room)
        close(index, true);
      sum += ratio;
      if (sum * wanted >= room) close(index + 1, true);
    }
    if (first < total) close(total, false);
    starts[row] = total;
    Object.assign(this, { rows: row, height: tops[row] });
    this.shown = Math.min(this.height, TALLEST);
    this.space.style.height = `${this.shown}px`;
    if (toTop) this.place.scrollTop = 0;
    else if (anchor) this.scrollTo(Math.min(anchor[0], total - 1), anchor[1]);
    for (const [index, tile] of this.tiles) this.release(index, tile);
    this.draw();
    this.place.dispatchEvent(new CustomEvent("laid"));
  }

  // returns the row at a vertical position of the list
  rowAt(top) {
    let low = 0,
      high = this.rows - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= top) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  rowOf(index) {
    let low = 0,
      high = this.rows - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= index) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  // returns the pictures of a row as [index, left, width]; all have the same height
  cells(row) {
    const { starts, tops, shapes } = this,
      height = tops[row + 1] - tops[row] - FOOT - GAP,
      found = [];
    let left = 0;
    for (let index = starts[row]; index < starts[row + 1]; index++) {
      const width = height * RATIOS[index < shapes.length ? shapes[index] : UNKNOWN];
      found.push([index, left, width]);
      left += width + GAP;
    }
    return found;
  }

  get scale() {
    // pixels of the list per pixel of the scroll bar
    const seen = this.place.clientHeight;
    return this.shown > seen ? (this.height - seen) / (this.shown - seen) : 1;
  }

  get offset() {
    const top = this.place.scrollTop * this.scale;
    if (this.exact !== undefined && Math.abs(this.exact - top) <= this.scale) return this.exact;
    this.exact = undefined;
    return top;
  }

  set offset(top) {
    this.exact = Math.max(0, Math.min(top, this.height - this.place.clientHeight));
    this.place.scrollTop = this.exact / this.scale;
  }

  scrollTo(index, by = 0) {
    if (!this.rows) return;
    this.offset = this.tops[this.rowOf(index)] + by;
    this.draw();
  }

  get firstSeen() {
    return this.rows ? this.starts[this.rowAt(this.offset)] : 0;
  }

  wheel(event) {
    if (this.height <= TALLEST || event.ctrlKey) return;
    event.preventDefault(); // with a scaled scroll bar, the list would jump
    this.offset += event.deltaY * (event.deltaMode === 1 ? 40 : 1);
    this.draw();
  }

  schedule() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
    });
  }

  draw() {
    if (!this.rows || !this.total) {
      for (const [index, tile] of this.tiles) this.release(index, tile);
      return;
    }
    const top = this.offset,
      seen = this.place.clientHeight;
    const from = Math.max(0, this.rowAt(top) - 1),
      to = Math.min(this.rows - 1, this.rowAt(top + seen) + 1);
    const first = this.starts[from],
      last = this.starts[to + 1];
    for (const [index, tile] of this.tiles) if (index < first || index >= last) this.release(index, tile);
    for (let row = from; row <= to; row++) {
      const y = this.tops[row] - top + this.place.scrollTop,
        height = this.tops[row + 1] - this.tops[row] - GAP;
      for (const [index, left, width] of this.cells(row)) this.put(index, left, y, width, height);
    }
    this.fetch(first, last);
  }

  put(index, x, y, width, height) {
    let tile = this.tiles.get(index);
    if (!tile) {
      tile = this.free.pop() || this.make();
      this.tiles.set(index, tile);
      tile.index = index;
      tile.box.hidden = false;
      tile.box.style.width = `${width}px`;
      tile.box.style.height = `${height}px`;
      this.fill(tile);
    }
    tile.box.style.transform = `translate(${x}px, ${y}px)`;
    this.point(tile, index === this.focus);
  }

  make() {
    const box = element("div", "tile"),
      card = element("div", "card"),
      image = element("img"),
      words = element("div", "words");
    const foot = element("div", "foot"),
      before = element("span", "before"),
      score = element("span", "score"),
      caption = element("span", "caption"),
      marks = element("div", "marks"),
      check = element("span", "check", "✓");
    const yes = element("span", "yes", "✓"),
      no = element("span", "no", "✗"); // not buttons: an option must not contain any, and every mark has a key
    for (const each of [yes, no, check]) each.setAttribute("aria-hidden", "true");
    yes.title = t("tile.yes");
    no.title = t("tile.no");
    check.title = t("tile.select");
    box.setAttribute("role", "option");
    box.id = `tile-${++tileCount}`;
    foot.append(before, score, caption);
    marks.append(yes, no);
    card.append(image, words, check, marks);
    box.append(card, foot);
    const tile = { box, image, words, before, score, caption, index: -1 };
    image.decoding = "async";
    image.draggable = false;
    image.addEventListener("error", () => {
      image.hidden = true;
      words.hidden = false;
    });
    const opened = (event) => {
      if (this.pick(tile.index, event, false)) return;
      this.move(tile.index);
      this.open(this.at(tile.index));
    };
    image.addEventListener("click", opened);
    words.addEventListener("click", opened);
    check.addEventListener("click", (event) => this.pick(tile.index, event, true));
    yes.addEventListener("click", () => {
      this.move(tile.index);
      this.mark(this.at(tile.index), 1);
    });
    no.addEventListener("click", () => {
      this.move(tile.index);
      this.mark(this.at(tile.index), -1);
    });
    this.space.append(box);
    return tile;
  }

  fill(tile) {
    const known = this.at(tile.index);
    const { box, image, words, before, score, caption } = tile;
    box.classList.toggle("below", (known?.before ?? tile.index + 1) > this.end); // the cut-off applies to the ranks before reranking
    box.classList.toggle("yes", known?.mark === 1);
    box.classList.toggle("no", known?.mark === -1);
    this.tick(tile);
    const source = known ? thumb(known.id) : "";
    if (tile.source !== source) {
      tile.source = source;
      image.hidden = !source;
      words.hidden = true;
      if (source) image.src = source;
      else image.removeAttribute("src");
    }
    image.alt = known ? named(known) : "";
    words.textContent = known ? named(known) : "";
    const probability = this.ask.order === "search" ? null : (known?.p ?? null); // of the label, not of the search
    score.textContent =
      probability !== null
        ? `${Math.round(100 * probability)}%`
        : this.scores && typeof known?.score === "number"
          ? known.score.toFixed(3)
          : "";
    before.textContent = known?.before && known.before !== tile.index + 1 ? `${tile.index + 1} ← ${known.before}` : "";
    if (known && known.says !== undefined) caption.textContent = sorted(known);
    else caption.textContent = known ? known.name || named(known) : "";
    for (const [name, value] of [
      ["posinset", tile.index + 1],
      ["setsize", this.total],
      [
        "label",
        known
          ? [named(known), score.textContent, { 1: t("tile.yes"), "-1": t("tile.no") }[known.mark]]
              .filter(Boolean)
              .join(", ")
          : "…",
      ],
    ])
      box.setAttribute(`aria-${name}`, value);
    const where = known ? [known.folder, known.name].filter(Boolean).join("/") || known.caption || known.id : "";
    box.title = known?.possible?.length ? t("tile.possible", { file: where, names: known.possible.join(", ") }) : where;
  }

  // shows whether the tile is selected
  tick(tile) {
    const known = this.at(tile.index);
    tile.box.classList.toggle("picked", Boolean(known) && this.picked(known.id));
  }

  release(index, tile) {
    this.tiles.delete(index);
    this.point(tile, false);
    tile.box.hidden = true;
    this.free.push(tile);
  }

  // called in every frame of scrolling, so it writes only changes
  point(tile, chosen) {
    if (tile.chosen === chosen) return;
    tile.chosen = chosen;
    tile.box.classList.toggle("focus", chosen);
    tile.box.setAttribute("aria-selected", chosen);
    if (chosen) this.place.setAttribute("aria-activedescendant", tile.box.id);
    else if (this.place.getAttribute("aria-activedescendant") === tile.box.id)
      this.place.removeAttribute("aria-activedescendant");
  }

  at(index) {
    return this.pages.get(Math.floor(index / PAGE))?.tiles?.[index % PAGE];
  }

  async fetch(first, last) {
    if (last > this.shapes.length && this.shapes.length < this.total) this.fetchShapes();
    for (let page = Math.floor(first / PAGE); page * PAGE < last; page++) {
      if (this.pages.has(page)) continue;
      const entry = {},
        { ask, pages, version, revision } = this;
      pages.set(page, entry);
      while (pages.size > KEPT_PAGES) pages.delete(pages.keys().next().value);
      api.list({ ...ask, start: page * PAGE, version, revision }).then(
        (answer) => {
          if (pages !== this.pages) return;
          if (answer.total !== this.total) {
            this.show({ ...answer, shapes: page ? undefined : answer.shapes }, { ask, keep: true });
            this.place.dispatchEvent(new CustomEvent("changed", { detail: answer }));
            return;
          } // pictures were added or removed
          entry.tiles = answer.tiles;
          for (const tile of this.tiles.values()) if (Math.floor(tile.index / PAGE) === page) this.fill(tile);
          this.place.dispatchEvent(new CustomEvent("filled"));
        },
        (error) => {
          if (pages !== this.pages) return;
          pages.delete(page);
          notice(error.message);
        },
      );
    }
  }

  // fetches the shapes of a long list once the user scrolls beyond its first pictures
  async fetchShapes() {
    if (this.shapesAsked) return;
    this.shapesAsked = true;
    const { ask, pages, version, revision } = this;
    let shapes;
    try {
      shapes = await api.shapes({ ...ask, version, revision });
    } catch {
      return;
    } // keep the current rows
    if (pages !== this.pages) return;
    this.shapes = shapes;
    this.layout();
  }

  move(index) {
    if (!this.total) return;
    this.focus = Math.max(0, Math.min(index, this.total - 1));
    const row = this.rowOf(this.focus),
      y = this.tops[row],
      end = this.tops[row + 1],
      seen = this.place.clientHeight,
      top = this.offset;
    if (y < top) this.offset = y;
    else if (end > top + seen) this.offset = end - seen;
    this.draw();
  }

  // returns the picture some rows up or down that is horizontally closest to the current one
  beyond(rows) {
    if (!this.rows) return 0;
    const row = this.rowOf(this.focus),
      [, left, width] = this.cells(row)[this.focus - this.starts[row]],
      middle = left + width / 2;
    const other = Math.max(0, Math.min(row + rows, this.rows - 1));
    const near = ([, x, wide]) => Math.abs(x + wide / 2 - middle);
    return this.cells(other).reduce((best, cell) => (near(cell) < near(best) ? cell : best))[0];
  }

  // returns the indices of the pictures in a rectangle of the list
  within({ left, top, right, bottom }) {
    const found = [];
    if (!this.rows) return found;
    for (let row = this.rowAt(Math.max(0, top)); row < this.rows && this.tops[row] < bottom; row++)
      for (const [index, x, width] of this.cells(row)) if (x < right && x + width > left) found.push(index);
    return found;
  }

  // reloads pictures and pages that failed while the server was not responding
  retry() {
    for (const tile of this.tiles.values()) if (tile.image.hidden) tile.source = undefined;
    this.refresh();
    this.draw();
  }

  refresh() {
    for (const tile of this.tiles.values()) this.fill(tile);
  }
  get current() {
    return this.at(this.focus);
  }
}
