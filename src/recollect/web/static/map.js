// The map: a two-dimensional layout of the embeddings, with dots colored by folder or label, and thumbnails where they fit.
import { api, element, guarded, notice, thumb } from "./api.js";
import { asked } from "./dialogs.js";
import { t } from "./strings.js";

const SIDE = 44,
  LARGE = 132,
  MOST = 400,
  KEPT = 1500,
  CLOSE = 2500; // thumbnails are SIDE to LARGE pixels wide
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#b8a900", "#8c6bb1"]; // Okabe and Ito; the last two darker

// converts a color to an opaque ImageData pixel
const pixel = (color) => {
  const [r, g, b] = [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
};
const PIXELS = COLORS.map(pixel);

export class PictureMap {
  // selected: called with the positions (in `ids`) of the points inside a loop
  constructor(canvas, open, selected = () => {}) {
    Object.assign(this, {
      canvas,
      open,
      selected,
      ids: [],
      points: [],
      groups: null,
      chosen: new Set(),
      lasso: null,
      lassoing: false,
      zoom: 1,
      x: 0,
      y: 0,
      images: new Map(),
      fingers: new Map(),
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.zoomAt(event.offsetX, event.offsetY, Math.exp(-event.deltaY / 400));
      },
      { passive: false },
    );
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.fingers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
      this.moved = this.fingers.size > 1 ? Infinity : 0;
      this.lasso = this.fingers.size === 1 && (this.lassoing || event.shiftKey) ? [event.offsetX, event.offsetY] : null;
    });
    canvas.addEventListener("pointermove", (event) => {
      const from = this.fingers.get(event.pointerId);
      if (!from) return;
      const to = { x: event.offsetX, y: event.offsetY },
        other = [...this.fingers].find(([id]) => id !== event.pointerId)?.[1];
      this.fingers.set(event.pointerId, to);
      this.moved += Math.abs(to.x - from.x) + Math.abs(to.y - from.y);
      if (other) {
        // pinch zoom
        const apart = ({ x, y }) => Math.max(8, Math.hypot(x - other.x, y - other.y));
        this.zoomAt((to.x + other.x) / 2, (to.y + other.y) / 2, apart(to) / apart(from));
      } else if (this.lasso) {
        this.lasso.push(to.x, to.y);
        this.schedule();
      } else {
        this.x += to.x - from.x;
        this.y += to.y - from.y;
        this.schedule();
      }
    });
    for (const kind of ["pointerup", "pointercancel"])
      canvas.addEventListener(kind, (event) => {
        const still = this.fingers.delete(event.pointerId) && kind === "pointerup" && this.moved < 5,
          { lasso } = this;
        this.lasso = null;
        if (still) this.pick(event.offsetX, event.offsetY);
        else if (lasso && kind === "pointerup") this.select(this.inside(lasso));
      });
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
      if (steps) {
        this.x += steps[0];
        this.y += steps[1];
        this.schedule();
        event.preventDefault();
      }
      if (event.key === "Enter") {
        event.preventDefault();
        this.pick(canvas.clientWidth / 2, canvas.clientHeight / 2, Infinity);
      }
      if (event.key === "+" || event.key === "-")
        this.zoomAt(canvas.clientWidth / 2, canvas.clientHeight / 2, event.key === "+" ? 1.3 : 1 / 1.3);
      if (event.key === "Escape") this.select([]);
    });
    new ResizeObserver(() => this.schedule()).observe(canvas);
  }

  async load(version, where) {
    if (this.version === version && this.where === where) return this.method;
    const mine = (this.asked = {}),
      answer = await api.map(where);
    if (mine !== this.asked) return this.method; // another filter was chosen meanwhile
    Object.assign(this, { images: new Map(), where, groups: null }, answer);
    this.select([]);
    return this.method;
  }

  color(groups) {
    // groups: color number of each point; -1 for none
    this.groups = groups;
    this.schedule();
  }

  select(places) {
    this.chosen = new Set(places);
    this.schedule();
    this.selected(places);
  }

  zoomAt(x, y, factor) {
    x -= this.canvas.clientWidth / 2;
    y -= this.canvas.clientHeight / 2; // relative to the center
    this.x = x - (x - this.x) * factor;
    this.y = y - (y - this.y) * factor;
    this.zoom *= factor;
    this.schedule();
  }

  get frame() {
    // scale and offset from the unit square to pixels
    const { clientWidth: width, clientHeight: height } = this.canvas,
      size = Math.min(width, height) * 0.92 * this.zoom;
    return { width, height, size, left: this.x + width / 2 - size / 2, top: this.y + height / 2 - size / 2 };
  }

  place(index) {
    const { size, left, top } = this.frame;
    return [left + this.points[2 * index] * size, top + this.points[2 * index + 1] * size];
  }

  visible(margin = 0) {
    // returns the indices of the visible points
    const { width, height, size, left, top } = this.frame,
      { points } = this,
      found = [];
    for (let index = 0; index < this.ids.length; index++) {
      const x = left + points[2 * index] * size,
        y = top + points[2 * index + 1] * size;
      if (x >= -margin && y >= -margin && x <= width + margin && y <= height + margin) found.push(index);
    }
    return found;
  }

  inside(loop) {
    // returns the indices of the points inside a polygon [x, y, x, y, …]
    const { size, left, top } = this.frame,
      { points } = this,
      found = [];
    for (let index = 0; index < this.ids.length; index++) {
      const x = left + points[2 * index] * size,
        y = top + points[2 * index + 1] * size;
      let odd = false;
      for (let at = 0, last = loop.length - 2; at < loop.length; last = at, at += 2) {
        if (
          loop[at + 1] > y !== loop[last + 1] > y &&
          x < ((loop[last] - loop[at]) * (y - loop[at + 1])) / (loop[last + 1] - loop[at + 1]) + loop[at]
        )
          odd = !odd;
      }
      if (odd) found.push(index);
    }
    return found;
  }

  schedule() {
    if (!this.waiting)
      this.waiting = requestAnimationFrame(() => {
        this.waiting = 0;
        this.draw();
      });
  }

  draw() {
    const { canvas } = this,
      ratio = devicePixelRatio || 1,
      frame = this.frame,
      ink = canvas.getContext("2d");
    const width = Math.round(frame.width * ratio),
      height = Math.round(frame.height * ratio);
    if (!width || !height) return;
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
      this.imageData = null;
    }
    ink.setTransform(1, 0, 0, 1, 0, 0);
    const seen = this.visible(LARGE / 2),
      close = seen.length <= CLOSE,
      quiet = this.quiet();
    this.drawn = [];
    this.side = Math.round(
      Math.min(LARGE, Math.max(SIDE, Math.sqrt((frame.width * frame.height) / Math.max(1, seen.length)) / 2)),
    ); // larger if there are few
    const dots = close ? this.cells(seen) : seen;
    this.forget();
    this.dots(ink, dots, width, height, ratio, quiet);
    ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (const [x, y, index] of this.drawn) this.thumbnail(ink, x, y, index);
    if (this.lasso) {
      ink.beginPath();
      for (let at = 0; at < this.lasso.length; at += 2) ink.lineTo(this.lasso[at], this.lasso[at + 1]);
      ink.strokeStyle = getComputedStyle(canvas).color;
      ink.lineWidth = 1.5;
      ink.setLineDash([5, 4]);
      ink.stroke();
      ink.setLineDash([]);
    }
  }

  cells(seen) {
    // assigns thumbnails to free cells; returns the points drawn as dots
    const taken = new Set(),
      dots = [];
    for (const index of seen) {
      const [x, y] = this.place(index),
        cell = Math.floor(x / this.side) * 100_003 + Math.floor(y / this.side);
      if (taken.has(cell) || this.drawn.length >= MOST) {
        dots.push(index);
        continue;
      }
      taken.add(cell);
      this.drawn.push([x, y, index]);
    }
    return dots;
  }

  // draws dots as pixels: a hundred thousand rectangles would take longer than a frame
  dots(ink, dots, width, height, ratio, quiet) {
    this.imageData ??= new ImageData(width, height);
    const pixels = new Uint32Array(this.imageData.data.buffer),
      { size, left, top } = this.frame,
      { points, groups, chosen } = this;
    pixels.fill(0);
    const small = Math.max(1, Math.round((dots.length > 20_000 ? 1.5 : 3) * ratio));
    for (const index of dots) {
      const is = chosen.has(index),
        side = is ? small + 2 : small,
        color = is ? 0xff0000ff : groups && groups[index] >= 0 ? PIXELS[groups[index]] : quiet;
      const x = Math.round((left + points[2 * index] * size) * ratio - side / 2),
        y = Math.round((top + points[2 * index + 1] * size) * ratio - side / 2);
      for (let down = Math.max(0, y); down < Math.min(height, y + side); down++)
        for (let right = Math.max(0, x); right < Math.min(width, x + side); right++)
          pixels[down * width + right] = color;
    }
    ink.putImageData(this.imageData, 0, 0);
  }

  quiet() {
    const [r, g, b] = getComputedStyle(this.canvas).color.match(/\d+/g).map(Number);
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  }

  thumbnail(ink, x, y, index) {
    const image = this.image(this.ids[index]),
      group = this.groups?.[index] ?? -1;
    let [width, height] = [6, 6];
    if (image.complete && image.naturalWidth) {
      const scale = (this.side - 4) / Math.max(image.naturalWidth, image.naturalHeight);
      [width, height] = [image.naturalWidth * scale, image.naturalHeight * scale];
      ink.drawImage(image, x - width / 2, y - height / 2, width, height);
    } else {
      ink.fillStyle = group >= 0 ? COLORS[group] : getComputedStyle(this.canvas).color;
      ink.fillRect(x - 3, y - 3, 6, 6);
    }
    const edge = this.chosen.has(index) ? "#ff0000" : group >= 0 ? COLORS[group] : "";
    if (edge) {
      ink.strokeStyle = edge;
      ink.lineWidth = 2;
      ink.strokeRect(x - width / 2 - 1, y - height / 2 - 1, width + 2, height + 2);
    }
  }

  // cancels loading of thumbnails that are no longer visible
  forget() {
    const seen = new Set(this.drawn.map(([, , index]) => this.ids[index]));
    for (const [id, image] of this.images)
      if (!image.complete && !seen.has(id)) {
        image.src = "";
        this.images.delete(id);
      }
  }

  image(id) {
    let image = this.images.get(id);
    if (!image) {
      image = new Image();
      image.addEventListener("load", () => this.schedule());
      image.src = thumb(id);
      this.images.set(id, image);
      if (this.images.size > KEPT) this.images.delete(this.images.keys().next().value);
    }
    return image;
  }

  pick(x, y, least = (this.side ?? SIDE) ** 2) {
    let best = null;
    for (const index of this.visible(LARGE)) {
      const [px, py] = this.place(index),
        distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least) {
        least = distance;
        best = index;
      }
    }
    if (best !== null) this.open({ id: this.ids[best], caption: "" });
  }
}

// Toolbar above the map: legend, and actions on a selection.
export class MapTools {
  // classes: the labels panel; where: returns the filter
  constructor(place, map, { classes, where }) {
    Object.assign(this, { map, classes, where });
    this.by = element("select");
    this.legend = element("ul", "legend");
    this.chosen = element("span");
    this.by.append(
      ...["none", "folder", "label"].map((by) => {
        const option = element("option", "", t(`map.by.${by}`));
        option.value = by;
        return option;
      }),
    );
    this.by.value = "folder";
    this.by.addEventListener(
      "change",
      guarded(() => this.paint()),
    );
    const label = element("label", "", `${t("map.color")} `);
    label.append(this.by);
    this.loop = element("button", "", t("map.loop"));
    this.loop.title = t("map.loop.title");
    this.loop.setAttribute("aria-pressed", "false");
    this.loop.addEventListener("click", () => {
      map.lassoing = !map.lassoing;
      this.loop.setAttribute("aria-pressed", map.lassoing);
      this.loop.classList.toggle("chosen", map.lassoing);
    });
    const all = element("button", "", t("map.select")),
      none = element("button", "", t("map.unselect"));
    all.addEventListener("click", () => map.select(map.visible()));
    none.addEventListener("click", () => map.select([]));
    this.mark = element("button", "main", t("map.label"));
    this.mark.addEventListener(
      "click",
      guarded(() => this.name()),
    );
    this.only = [this.chosen, this.mark, none];
    map.selected = (places) => this.tell(places);
    place.prepend(this.legend);
    const tools = element("div", "map-tools");
    tools.append(label, this.loop, all, ...this.only);
    place.prepend(tools);
    this.tell([]);
  }

  async paint() {
    const { map } = this,
      by = this.by.value;
    if (by === "none") {
      map.color(null);
      this.legend.replaceChildren();
      return;
    }
    const { names, groups } = await api.mapGroups(by, this.where());
    if (by !== this.by.value) return; // another coloring was chosen meanwhile
    if (groups.length !== map.ids.length) return; // the library has changed; the next load paints again
    map.color(Int16Array.from(groups, (group) => (group < COLORS.length ? group : -1)));
    const rest = names.length > COLORS.length || groups.includes(-1) ? [[t("map.others"), ""]] : [];
    this.legend.replaceChildren(
      ...[...names.slice(0, COLORS.length).map((name, at) => [name || t("map.nofolder"), COLORS[at]]), ...rest].map(
        ([name, color]) => {
          const row = element("li"),
            dot = element("span", "dot");
          dot.style.background = color || "var(--quiet)";
          row.append(dot, element("span", "", name));
          return row;
        },
      ),
    );
  }

  tell(places) {
    this.places = places;
    this.chosen.textContent = t("map.selected", { n: places.length });
    for (const each of this.only) each.hidden = !places.length;
  }

  async name() {
    const ids = this.places.map((place) => this.map.ids[place]),
      { list, active } = this.classes;
    const name = await asked(t("map.label.ask", { n: ids.length }), t("labels.new.name"), t("map.label.do"), {
      value: list.find((each) => each.class === active)?.name ?? "",
    });
    if (!name) return;
    await api.marks(await this.classes.named(name), { ids }, 1);
    await this.classes.load();
    if (this.by.value === "label") await this.paint();
    notice(t("map.labeled", { n: ids.length, name }));
  }
}
