// Duplicates side by side: choose which to keep, preview, then remove or move the others.
import { api, element, guarded, named, offer, opens, thumb } from "./api.js";
import { asked, confirmed } from "./dialogs.js";
import { bytes, number, t } from "./strings.js";

const KINDS = ["identical", "near-identical", "similar"],
  POLL = 400;

export class Duplicates {
  // where: returns the filter; look: opens a picture; changed: called after removals; classes: returns the labels panel, for undo
  constructor(place, { where, look, changed, classes }) {
    Object.assign(this, { place, where, look, changed, classes, kind: null, groups: [], gone: new Map() });
    this.head = element("div", "found");
    this.list = element("div", "groups");
    this.bar = element("div", "resolve");
    this.more = element("button", "", t("duplicates.show"));
    this.more.addEventListener(
      "click",
      guarded(() => this.fetch()),
    );
    place.append(this.head, this.list, this.more, this.bar);
    for (const action of ["load", "remove", "move", "stop", "again"]) this[action] = guarded(this[action].bind(this));
    this.more.hidden = true;
  }

  // shows the duplicates, starting a search if there was none
  async load() {
    let found = await api.duplicates(this.where());
    if (found.state === "idle") {
      await api.findDuplicates();
      found = await api.duplicates(this.where());
    }
    await this.follow(found);
  }

  async again() {
    await api.findDuplicates();
    await this.follow(await api.duplicates(this.where()));
  }

  async follow(found) {
    const mine = (this.following = {});
    while (found.state === "running") {
      this.running(found);
      await new Promise((resolve) => setTimeout(resolve, POLL));
      if (mine !== this.following || this.place.hidden) return;
      found = await api.duplicates(this.where());
      if (mine !== this.following) return;
    }
    await this.show(found);
  }

  running({ what, done, total }) {
    const bar = element("progress"),
      stop = element("button", "", t("duplicates.stop"));
    bar.setAttribute("aria-label", t("duplicates.looking"));
    if (total) Object.assign(bar, { max: total, value: done });
    stop.addEventListener("click", this.stop);
    const text = what && total ? t("duplicates.comparing", { done, total }) : t("duplicates.looking");
    this.head.replaceChildren(bar, element("span", "", text), stop);
    this.list.replaceChildren();
    this.bar.hidden = this.more.hidden = true;
  }

  async stop() {
    await api.stopDuplicates();
    this.following = null;
    await this.show(await api.duplicates(this.where()));
  }

  async show(found) {
    const { counts = {}, state } = found;
    if (!this.kind || !counts[this.kind]?.groups) this.kind = KINDS.find((kind) => counts[kind]?.groups) ?? "identical";
    this.found = found;
    const tabs = element("div", "modes");
    tabs.setAttribute("role", "group");
    tabs.setAttribute("aria-label", t("duplicates.kinds"));
    tabs.append(
      ...KINDS.map((kind) => {
        const { groups = 0 } = counts[kind] ?? {},
          button = element("button", kind === this.kind ? "chosen" : "", `${t(`kind.${kind}`)} ${number(groups)}`);
        button.setAttribute("aria-pressed", kind === this.kind);
        button.title = t(`kind.${kind}.title`);
        button.addEventListener(
          "click",
          guarded(async () => {
            this.kind = kind;
            await this.show(this.found);
          }),
        );
        return button;
      }),
    );
    const again = element("button", "", t("duplicates.again"));
    again.addEventListener("click", this.again);
    const text = {
      failed: found.error,
      stopped: t("duplicates.stopped"),
      done: [t(`kind.${this.kind}.title`), found.changed ? t("duplicates.changed") : "", ...(found.skipped ?? [])].join(
        " ",
      ),
    }[state];
    this.head.replaceChildren(tabs, element("span", "", text), again);
    this.groups = [];
    this.gone = new Map();
    this.list.replaceChildren();
    this.rest = counts[this.kind]?.groups ?? 0;
    if (state === "done" && !this.rest) this.list.append(element("p", "empty", t("duplicates.none")));
    await this.fetch();
  }

  async fetch() {
    if (this.rest > this.groups.length) {
      const list = this.groups,
        start = list.length;
      const { groups } = await api.duplicates(this.where(), this.kind, start);
      if (list !== this.groups || start !== list.length) return; // another kind was chosen, or these groups are loaded already
      this.groups.push(...groups);
      this.list.append(...groups.map((group, place) => this.group(group, start + place)));
    }
    this.more.hidden = this.rest <= this.groups.length;
    this.tell();
  }

  // builds the cards of a group: pictures, or the files of one picture; by default only the first is kept (all similar pictures)
  group({ kind, pictures, more }, place) {
    const box = element("section", "alike");
    box.setAttribute("aria-label", t("duplicates.group", { n: place + 1, of: this.rest }));
    const cards =
      kind === "identical"
        ? pictures.flatMap((tile) => tile.files.map((file) => ({ key: file.path, tile, files: [file] })))
        : pictures.map((tile) => ({ key: tile.id, tile, files: tile.files }));
    cards.forEach((card, at) => {
      const goes = at > 0 && kind !== "similar" && card.key;
      if (goes) this.gone.set(card.key, { ...card, kept: cards[0] });
      box.append(this.card(card, cards));
    });
    if (more) box.append(element("p", "hint", t("duplicates.more", { n: more })));
    return box;
  }

  card(card, cards) {
    const { key, tile, files } = card,
      figure = element("figure"),
      image = element("img"),
      keep = element("button", "keep"),
      about = element("figcaption");
    image.loading = "lazy";
    image.src = thumb(tile.id);
    image.alt = named(tile);
    image.addEventListener("error", () => figure.classList.add("missing"));
    const size = tile.width ? `${tile.width} × ${tile.height}` : "",
      weight = files.reduce((sum, file) => sum + file.bytes, 0);
    const name = files[0]?.name ?? named(tile),
      cut = name.lastIndexOf("/") + 1;
    about.append(
      element("b", "", name.slice(cut) || named(tile)),
      element("span", "", name.slice(0, cut)),
      element("span", "", [size, weight ? bytes(weight) : "", tile.taken?.slice(0, 10)].filter(Boolean).join(" · ")),
    );
    about.title = files.map((file) => file.name).join("\n");
    const draw = () => {
      const goes = this.gone.has(key);
      figure.classList.toggle("goes", goes);
      keep.textContent = t(goes ? "duplicates.remove.one" : "duplicates.keep");
      keep.setAttribute("aria-pressed", !goes);
      keep.setAttribute("aria-label", `${keep.textContent}: ${name}`);
    };
    keep.disabled = !key;
    keep.addEventListener("click", () => {
      if (this.gone.has(key)) this.gone.delete(key);
      else this.gone.set(key, { ...card, kept: cards.find((each) => each.key !== key && !this.gone.has(each.key)) });
      draw();
      this.tell();
    });
    draw();
    figure.append(
      opens(image, () => this.look(tile)),
      about,
      keep,
    );
    return figure;
  }

  tell() {
    // updates the bar with the selection and its actions
    const chosen = [...this.gone.values()],
      n = chosen.length,
      weight = chosen.flatMap(({ files }) => files).reduce((sum, file) => sum + file.bytes, 0);
    const say = element(
      "span",
      "",
      n
        ? t(this.kind === "identical" ? "duplicates.chosen.files" : "duplicates.chosen", { n, size: bytes(weight) })
        : t("duplicates.chosen.none"),
    );
    const button = (key, action, enabled, main = "") => {
      const node = element("button", main, t(key));
      node.disabled = !enabled;
      node.addEventListener("click", action);
      return node;
    };
    this.bar.replaceChildren(
      say,
      ...[
        this.kind === "identical" ? null : button("duplicates.remove", this.remove, n, "main"),
        button(
          "duplicates.move",
          this.move,
          chosen.some(({ files }) => files.some((file) => file.path)),
          this.kind === "identical" ? "main" : "",
        ),
      ].filter(Boolean),
    );
    this.bar.hidden = !this.groups.length;
  }

  // lists all pictures or files to remove, each with the one that is kept
  preview() {
    const list = element("ul", "preview");
    list.append(
      ...[...this.gone.values()].map(({ tile, files, kept }) => {
        const row = element("li"),
          image = element("img"),
          names = files.map((file) => file.name).join("\n");
        image.src = thumb(tile.id);
        image.alt = "";
        image.loading = "lazy";
        row.append(
          image,
          element("span", "", names || named(tile)),
          element(
            "span",
            "hint",
            kept ? t("duplicates.kept", { name: kept.files[0]?.name ?? named(kept.tile) }) : t("duplicates.kept.none"),
          ),
        );
        return row;
      }),
    );
    return list;
  }

  async remove() {
    if (!(await confirmed(t("duplicates.remove.ask", { n: this.gone.size }), t("duplicates.remove"), this.preview())))
      return;
    await this.resolve({ kind: "remove", ids: [...this.gone.keys()] });
  }

  async move() {
    const folder = await asked(
      t("duplicates.move.ask", { n: this.gone.size }),
      t("duplicates.move.folder"),
      t("duplicates.move.do"),
      { contents: [this.preview()] },
    );
    if (!folder) return;
    const chosen = [...this.gone.values()];
    if (this.kind === "identical")
      await this.resolve({
        kind: "move",
        ids: [...new Set(chosen.map(({ tile }) => tile.id))],
        files: chosen.map(({ key }) => key),
        folder,
      });
    else await this.resolve({ kind: "delete", ids: [...this.gone.keys()], folder }); // removed from the library; the files are moved to the folder
  }

  async resolve(what) {
    const { pictures, files, missing } = await api.act(what);
    await this.refresh();
    await this.changed();
    await this.classes().load();
    offer(
      [
        files ? t("duplicates.moved", { n: files }) : t("duplicates.removed", { n: pictures }),
        missing ? t("duplicates.missing", { n: missing }) : "",
      ].join(" "),
      t("undo"),
      () => this.classes().undo(),
    );
  }

  async refresh() {
    await this.show(await api.duplicates(this.where()));
  }
}
