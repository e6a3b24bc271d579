// Selection of pictures, and its actions: label, export, copy, move, remove, delete.
import { api, element, guarded, notice, offer } from "./api.js";
import { asked, confirmed } from "./dialogs.js";
import { number, t } from "./strings.js";

const MOST = 20_000; // pictures selected individually; "all results" has no limit
const LONG = 500; // duration of a long press in milliseconds
const DRAG = 8; // pixels before a press becomes a drag

export class Selection {
  // classes: the labels panel; changed: called when pictures were removed or labels changed
  constructor({ classes, changed }) {
    Object.assign(this, { classes, changed, ids: new Set(), whole: null, last: null });
    const get = (id) => document.getElementById(id);
    Object.assign(this, { bar: get("selected"), count: get("selected-count"), label: get("selected-label") });
    for (const action of ["all", "mark", "save", "put", "remove", "destroy", "range"])
      this[action] = guarded(this[action].bind(this));
    get("select-all").addEventListener("click", () => this.all());
    get("select-none").addEventListener("click", () => this.clear());
    this.label.addEventListener("change", () => {
      const key = this.label.value;
      this.label.value = "";
      this.mark(key);
    });
    get("selected-export").addEventListener("change", ({ target }) => {
      const kind = target.value;
      target.value = "";
      this.save(kind);
    });
    get("selected-copy").addEventListener("click", () => this.put("copy"));
    get("selected-move").addEventListener("click", () => this.put("move"));
    get("selected-remove").addEventListener("click", () => this.remove());
    get("selected-delete").addEventListener("click", () => this.destroy());
  }

  attach(grid) {
    this.grid = grid;
    const { place } = grid,
      box = element("div", "rectangle");
    let from = null,
      before = null;
    const at = (event) => {
      const view = place.getBoundingClientRect();
      return [event.clientX - view.left, event.clientY - view.top + grid.offset];
    };
    place.append(box);
    box.hidden = true;
    place.addEventListener("pointerdown", (event) => {
      if (
        event.button ||
        event.pointerType === "touch" ||
        event.target.closest("button") ||
        event.offsetX > place.clientWidth
      )
        return;
      from = { point: at(event), x: event.clientX, y: event.clientY };
      before = event.ctrlKey || event.metaKey || event.shiftKey ? new Set(this.ids) : null;
    });
    let pressed = 0;
    place.addEventListener("pointerdown", (event) => {
      // a long press on a phone
      const tile =
        event.pointerType === "touch" && [...grid.tiles.values()].find(({ box: each }) => each.contains(event.target));
      clearTimeout(pressed);
      if (tile && !event.target.closest("button"))
        pressed = setTimeout(() => {
          this.toggle(tile.index);
          addEventListener(
            "click",
            (click) => {
              click.stopPropagation();
              click.preventDefault();
            },
            { capture: true, once: true },
          );
        }, LONG);
    });
    for (const kind of ["pointerup", "pointercancel", "scroll"])
      place.addEventListener(kind, () => clearTimeout(pressed), { passive: true });
    place.addEventListener("contextmenu", (event) => {
      if (event.pointerType === "touch") event.preventDefault();
    });
    addEventListener("pointermove", (event) => {
      if (!from || (box.hidden && Math.hypot(event.clientX - from.x, event.clientY - from.y) < DRAG)) return;
      box.hidden = false;
      const view = place.getBoundingClientRect(),
        edge = event.clientY - view.bottom > -24 ? 12 : event.clientY - view.top < 24 ? -12 : 0;
      if (edge) {
        grid.offset += edge;
        grid.draw();
      }
      const [x, y] = at(event),
        [x0, y0] = from.point,
        area = { left: Math.min(x, x0), right: Math.max(x, x0), top: Math.min(y, y0), bottom: Math.max(y, y0) };
      Object.assign(box.style, {
        left: `${area.left}px`,
        top: `${area.top - grid.offset + place.scrollTop}px`,
        width: `${area.right - area.left}px`,
        height: `${area.bottom - area.top}px`,
      });
      this.whole = null;
      this.ids = new Set(before ?? []);
      for (const index of grid.within(area)) if (grid.at(index)) this.ids.add(grid.at(index).id);
      this.draw();
    });
    addEventListener("pointerup", () => {
      if (from && !box.hidden)
        addEventListener("click", (event) => event.stopPropagation(), { capture: true, once: true }); // suppress the click on the picture
      setTimeout(() => {
        from = null;
      });
      box.hidden = true;
    });
  }

  get size() {
    return this.whole ? this.whole.total : this.ids.size;
  }

  has(id) {
    return Boolean(this.whole) || this.ids.has(id);
  }

  // handles a click on a picture that may select it (with a modifier key, on its check mark, or with an existing
  // selection); returns whether it did
  pick(index, event, tick) {
    const tile = this.grid.at(index);
    if (!tile) return false;
    if (event.shiftKey && this.last !== null) {
      this.range(this.last, index);
      return true;
    }
    if (!tick && !event.ctrlKey && !event.metaKey && !this.size) return false;
    this.toggle(index);
    return true;
  }

  toggle(index) {
    const tile = this.grid.at(index);
    if (!tile) return;
    if (this.whole) this.clear();
    if (this.ids.has(tile.id)) this.ids.delete(tile.id);
    else this.ids.add(tile.id);
    this.last = index;
    this.grid.move(index);
    this.draw();
  }

  async range(from, to) {
    const start = Math.min(from, to),
      count = Math.abs(from - to) + 1;
    if (count > MOST) {
      notice(t("select.most", { n: MOST }));
      return;
    }
    const { ids } = await api.ids({ ...this.listed(), start, count });
    for (const id of ids) this.ids.add(id);
    this.last = to;
    this.draw();
  }

  listed() {
    const { ask, version, revision } = this.grid;
    return { ...ask, version, revision };
  }

  async all() {
    // selects all pictures; only the likely matches of a search with a cut-off
    const total = Math.min(this.grid.total, this.grid.end),
      few = total <= MOST;
    const { ids } = few ? await api.ids({ ...this.listed(), count: Math.max(1, total) }) : { ids: [] };
    this.ids = new Set(ids);
    this.whole = few ? null : { of: this.listed(), total };
    this.draw();
  }

  clear() {
    this.ids.clear();
    this.whole = this.last = null;
    this.draw();
  }

  // the selection for API requests
  get chosen() {
    return this.whole ? { of: this.whole.of, first: this.whole.total } : { ids: [...this.ids] };
  }

  draw() {
    const n = this.size;
    this.bar.hidden = !n;
    this.count.textContent = t("select.count", { n });
    document.body.classList.toggle("selecting", n > 0);
    for (const tile of this.grid.tiles.values()) this.grid.tick(tile);
    const first = [
      element("option", "", t("select.label")),
      ...this.classes.list.map((each) => Object.assign(element("option", "", each.name), { value: each.class })),
      Object.assign(element("option", "", t("select.label.new")), { value: "new" }),
    ];
    first[0].value = "";
    this.label.replaceChildren(...first);
  }

  async mark(key) {
    if (!key) return;
    if (key === "new") {
      const name = await asked(t("select.label.new"), t("labels.new"), t("labels.add"));
      if (!name) return;
      key = await this.classes.named(name);
    }
    const n = this.size;
    await api.marks(Number(key), this.chosen, 1);
    await this.classes.load();
    const { name } = this.classes.list.find((each) => each.class === Number(key));
    this.clear();
    await this.changed();
    offer(t("select.marked", { n, name }), t("undo"), () => this.classes.undo());
  }

  async save(kind) {
    if (!kind) return;
    const data = await api.exported({ ...this.chosen, kind }),
      link = element("a");
    link.href = URL.createObjectURL(data);
    link.download = `pictures${kind.startsWith("coco") ? ".json" : `.${kind}`}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  async put(kind) {
    const plan = kind === "move" ? await api.plan(this.chosen) : null,
      folders = plan ? [this.touched(plan)] : [];
    if (plan?.watched) folders.push(element("p", "hint", t("select.move.out", { folder: plan.watched })));
    const folder = await asked(t(`select.${kind}.ask`, { n: this.size }), t("select.folder"), t(`select.${kind}.do`), {
      contents: folders,
    });
    if (folder) await this.done(await api.act({ ...this.chosen, kind, folder }));
  }

  async remove() {
    if (await confirmed(t("select.remove.ask", { n: this.size }), t("select.remove")))
      await this.done(await api.act({ ...this.chosen, kind: "remove" }));
  }

  // deletes files after two confirmations; the second one shows how many files and where
  async destroy() {
    if (!(await confirmed(t("select.delete.ask", { n: this.size }), t("select.delete.next")))) return;
    const plan = await api.plan(this.chosen);
    if (
      await confirmed(
        t("select.delete.files", { n: plan.files, trash: plan.trash.join(", ") }),
        t("select.delete.yes", { n: plan.files }),
        this.touched(plan),
      )
    )
      await this.done(await api.act({ ...this.chosen, kind: "delete" }));
  }

  touched({ folders, more_folders: more }) {
    const list = element("ul", "folders");
    list.append(
      ...folders.map(([folder, n]) => element("li", "", `${folder}: ${number(n)}`)),
      ...(more ? [element("li", "", t("select.folders.more", { n: more }))] : []),
    );
    return list;
  }

  async done({ kind, pictures, missing }) {
    this.clear();
    await this.changed();
    const text = t(`select.done.${kind}`, { n: pictures });
    await this.classes.load();
    offer(missing ? `${text} ${t("select.missing", { n: missing })}` : text, t("undo"), () => this.classes.undo());
  }
}
