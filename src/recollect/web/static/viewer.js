// A single picture in the full window, with its details.
import { api, element, guarded, named, notice, original, picture } from "./api.js";
import { language, t } from "./strings.js";

// formats a date; invalid dates in files are returned unchanged
const when = (text) => {
  const date = new Date(text);
  return Number.isNaN(date.getTime())
    ? text
    : date.toLocaleString(language, { dateStyle: "medium", timeStyle: text.includes("T") ? "short" : undefined });
};

const MOST_ZOOM = 12,
  DOUBLE = 2.5,
  SWIPE = 60;

export class Viewer {
  // like: searches for more or less like the picture; beside: returns its neighbor in the list; step: opens the
  // neighbor; labels: returns all labels; mark: marks a picture for a label
  constructor(like, beside, step, { labels, mark }) {
    Object.assign(this, { beside, step, labels, mark, scale: 1, x: 0, y: 0, pointers: new Map(), item: null });
    const get = (id) => document.getElementById(id);
    Object.assign(this, {
      dialog: get("viewer"),
      stage: get("view-stage"),
      image: get("view"),
      none: get("view-none"),
      caption: get("view-caption"),
      about: get("view-about"),
      chips: get("view-labels"),
      side: get("view-side"),
      steps: [
        [get("before"), -1],
        [get("behind"), 1],
      ],
    });
    for (const [button, by] of this.steps) button.addEventListener("click", () => step(by));
    this.image.addEventListener("error", () => {
      this.image.hidden = true;
      this.none.hidden = false;
    }); // missing, damaged, or not stored
    this.image.addEventListener("load", () => {
      if (!this.large) this.image.style.maxWidth = `${2.5 * this.image.naturalWidth}px`;
    }); // limits how much small pictures are enlarged
    this.copy = get("copy");
    this.download = get("download");
    this.show = get("show-file");
    this.copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(this.path);
        notice(t("viewer.copied"));
      } catch {
        notice(this.path);
      } // browsers forbid copying on unencrypted pages
    });
    this.show.addEventListener(
      "click",
      guarded(() => api.showFile(this.tile.id)),
    );
    get("close").addEventListener("click", () => this.dialog.close());
    get("view-info").addEventListener("click", () => this.info(this.side.hidden));
    for (const [id, weight] of [
      ["more", 1],
      ["less", -1],
    ])
      get(id).addEventListener("click", () => {
        this.dialog.close();
        like(this.tile, weight);
      });
    if (matchMedia("(max-width: 700px)").matches) this.info(false);
    this.listen();
  }

  listen() {
    const { stage, pointers } = this;
    stage.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.zoomAt(event.clientX, event.clientY, Math.exp(-event.deltaY * (event.deltaMode === 1 ? 0.05 : 0.002)));
      },
      { passive: false },
    );
    stage.addEventListener("dblclick", (event) => {
      if (this.hits(event)) this.zoomAt(event.clientX, event.clientY, this.scale > 1 ? 0 : DOUBLE);
    });
    stage.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, event);
      this.started = { x: event.clientX, y: event.clientY, moved: false, alone: pointers.size === 1, again: false };
      stage.setPointerCapture(event.pointerId);
    });
    stage.addEventListener("mousedown", (event) => {
      if (this.started) this.started.again = event.detail > 1;
    }); // second click of the double click that opened the picture
    stage.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      if (Math.hypot(event.clientX - this.started.x, event.clientY - this.started.y) > 5) this.started.moved = true;
      const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
      if (other) {
        const distance = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
        this.started.alone = false;
        this.zoomAt(
          (event.clientX + other.clientX) / 2,
          (event.clientY + other.clientY) / 2,
          distance(event) / Math.max(1, distance(before)),
        );
      } else if (this.scale > 1) this.pan(event.clientX - before.clientX, event.clientY - before.clientY);
      pointers.set(event.pointerId, event);
    });
    for (const kind of ["pointerup", "pointercancel"])
      stage.addEventListener(kind, (event) => {
        if (!pointers.delete(event.pointerId) || kind === "pointercancel" || pointers.size) return;
        const { x, y, moved, alone, again } = this.started,
          across = event.clientX - x;
        if (!moved && !again && !this.hits(event))
          this.dialog.close(); // a click outside the picture
        else if (
          alone &&
          this.scale === 1 &&
          event.pointerType === "touch" &&
          Math.abs(across) > SWIPE &&
          Math.abs(across) > 2 * Math.abs(event.clientY - y)
        )
          this.step(across > 0 ? -1 : 1);
      });
  }

  // returns whether a point is on the picture, whose element may be larger than the picture
  hits({ clientX, clientY }) {
    const { image } = this,
      box = image.getBoundingClientRect(),
      by = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
    return (
      !image.hidden &&
      Math.abs(clientX - box.left - box.width / 2) <= (by * image.naturalWidth) / 2 &&
      Math.abs(clientY - box.top - box.height / 2) <= (by * image.naturalHeight) / 2
    );
  }

  // zooms around a point of the window; a factor of 0 shows the whole picture
  zoomAt(clientX, clientY, factor) {
    const box = this.stage.getBoundingClientRect(),
      x = clientX - box.left - box.width / 2,
      y = clientY - box.top - box.height / 2;
    const scale = factor ? Math.min(MOST_ZOOM, Math.max(1, this.scale * factor)) : 1,
      by = scale / this.scale;
    Object.assign(this, { scale, x: x - (x - this.x) * by, y: y - (y - this.y) * by });
    if (scale > 1.2 && !this.large && Math.max(this.image.naturalWidth, this.image.naturalHeight) >= 1600) {
      this.large = true;
      this.image.src = picture(this.tile.id, true);
    }
    this.place();
  }

  pan(x, y) {
    this.x += x;
    this.y += y;
    this.place();
  }

  place() {
    const { stage, image } = this,
      room = (size, shown) => Math.max(0, (size * this.scale - shown) / 2);
    const wide = room(image.offsetWidth, stage.clientWidth),
      high = room(image.offsetHeight, stage.clientHeight);
    this.x = Math.min(wide, Math.max(-wide, this.x));
    this.y = Math.min(high, Math.max(-high, this.y));
    image.style.transform = this.scale === 1 ? "" : `translate(${this.x}px, ${this.y}px) scale(${this.scale})`;
    stage.classList.toggle("zoomed", this.scale > 1);
  }

  // handles a key that zooms or toggles details; returns whether it did
  key(key) {
    const box = this.stage.getBoundingClientRect(),
      middle = [box.left + box.width / 2, box.top + box.height / 2];
    if (key === "+" || key === "=") this.zoomAt(...middle, 1.5);
    else if (key === "-") this.zoomAt(...middle, 1 / 1.5);
    else if (key === "0") this.zoomAt(...middle, 0);
    else if (key === "i") this.info(this.side.hidden);
    else return false;
    return true;
  }

  info(shown) {
    this.side.hidden = !shown;
    document.getElementById("view-info").setAttribute("aria-expanded", shown);
    this.place();
  }

  say(captions) {
    // shows all captions
    this.caption.replaceChildren(...captions.map((text) => element("li", "", text)));
    this.caption.hidden = !captions.length;
  }

  async open(tile) {
    Object.assign(this, { tile, scale: 1, x: 0, y: 0, large: false, item: null });
    this.image.hidden = false;
    this.none.hidden = true;
    this.copy.hidden = this.show.hidden = true;
    this.image.src = picture(tile.id);
    this.image.alt = named(tile);
    this.download.href = original(tile.id);
    this.say([named(tile)]);
    this.about.replaceChildren();
    this.chips.replaceChildren();
    const near = this.steps.map(([, by]) => this.beside(tile, by));
    for (const [place, [button]] of this.steps.entries()) {
      button.hidden = !near.some(Boolean);
      button.disabled = !near[place];
      if (near[place]) new Image().src = picture(near[place].id); // preload
    }
    if (!this.dialog.open) {
      this.dialog.showModal();
      this.stage.focus();
    }
    this.place();
    await this.load();
  }

  async load() {
    const { tile } = this,
      item = await api.item(tile.id);
    if (this.tile !== tile) return; // another picture was opened meanwhile
    this.item = item;
    const { captions, files, facts, exif, metadata } = item;
    this.say(captions);
    this.path = files.find((file) => file.startsWith("/") || /^[A-Z]:/.test(file)) ?? "";
    this.copy.hidden = !this.path;
    this.show.hidden = !this.path || !item.can_show;
    const { width, height, ...others } = facts,
      size = width ? { [t("viewer.size")]: `${width} × ${height}` } : {};
    if (others.taken) others.taken = when(others.taken);
    const known = Object.fromEntries(Object.entries(others).map(([name, value]) => [t(`viewer.${name}`), value]));
    const rows = {
      ...(files.length ? { [t("viewer.file", { n: files.length })]: files.join("\n") } : {}),
      ...size,
      ...known,
      ...exif,
      ...metadata,
    };
    this.about.replaceChildren(
      ...Object.entries(rows).flatMap(([name, value]) => [
        element("dt", "", name),
        element("dd", "", typeof value === "object" ? JSON.stringify(value) : String(value)),
      ]),
    );
    this.draw();
  }

  // draws a button per label, pressed if the picture has the label
  draw() {
    const mine = this.item?.labels ?? [],
      all = this.labels(),
      known = new Set(all.map(({ name }) => name));
    this.chips.replaceChildren(
      ...all.map((each) => {
        const on = mine.includes(each.name),
          chip = element("button", on ? "chosen" : "", each.name);
        chip.setAttribute("aria-pressed", on);
        chip.addEventListener(
          "click",
          guarded(() => this.mark(this.tile, on ? 0 : 1, each.class)),
        );
        return chip;
      }),
      ...mine.filter((name) => !known.has(name)).map((name) => element("span", "term", name)),
    );
  }
}
