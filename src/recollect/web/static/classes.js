// The labels panel: create labels, mark pictures, and show what the marks say about other pictures.
import { api, element, fill, guarded, notice } from "./api.js";
import { asked, confirmed } from "./dialogs.js";
import { percent, t } from "./strings.js";

export class Classes {
  // changed: called after labels changed, with the undone change after an undo; where: returns the current filter
  constructor(begin, show, changed, where) {
    Object.assign(this, {
      begin,
      show,
      changed,
      where,
      list: [],
      active: null,
      mode: "likely",
      revision: -1,
      pending: {},
    });
    const get = (id) => document.getElementById(id);
    Object.assign(this, {
      place: get("classes"),
      about: get("about"),
      cut: get("cut"),
      stop: get("stop"),
      name: get("class-name"),
      text: get("class-text"),
      file: get("save-name"),
      hint: get("classes-hint"),
      saved: get("saved"),
      buttons: { undo: get("undo"), redo: get("redo") },
    });
    for (const action of ["load", "choose", "create", "mark", "undo", "redo", "rename", "drop", "save", "rank", "tell"])
      this[action] = guarded(this[action].bind(this));
    get("new-class").addEventListener("submit", (event) => {
      event.preventDefault();
      this.create();
    });
    get("save").addEventListener("submit", (event) => {
      event.preventDefault();
      this.save();
    });
    get("undo").addEventListener("click", () => this.undo());
    get("redo").addEventListener("click", () => this.redo());
    for (const button of this.about.querySelectorAll("[data-show]"))
      button.addEventListener("click", () => this.rank(button.dataset.show));
  }

  async load() {
    const { classes, revision, ...pending } = await api.classes();
    const changed = revision !== this.revision;
    Object.assign(this, { list: classes, revision });
    this.offer(pending);
    const lost = this.active !== null && !classes.some((each) => each.class === this.active); // removed in another tab, or undone
    if (lost) {
      this.active = null;
      this.about.hidden = true;
    }
    if (changed || lost) this.draw();
    return changed;
  }

  // returns the key of the label with a name, creating the label if needed
  async named(name) {
    const known = this.list.find((each) => each.name === name)?.class ?? (await api.create(name, "")).class;
    await this.load();
    return known;
  }

  async create() {
    if (!this.name.value.trim()) {
      this.name.focus();
      return;
    }
    this.creating = true;
    document.getElementById("grid").focus(); // so the next keys mark pictures instead of editing the name
    try {
      const { class: key } = await api.create(this.name.value, this.text.value);
      this.name.value = this.text.value = "";
      await this.load();
      await this.choose(key);
    } catch (error) {
      this.name.focus();
      throw error;
    } finally {
      this.creating = false;
    }
  }

  // shows on the buttons what they would undo and redo
  offer(pending) {
    this.pending = pending;
    document.getElementById("panel").classList.toggle("unused", !pending.undo && !pending.redo && !this.list.length);
    for (const [action, button] of Object.entries(this.buttons)) {
      const change = pending[action];
      button.textContent = change ? t(`${action}.what`, { what: this.described(change) }) : t(action);
      button.title = `${button.textContent} (${action[0]})`;
      button.setAttribute("aria-disabled", !change);
    }
  }

  described(change) {
    const kind = change.do !== "mark" ? change.do : change.pictures > 1 ? "marks" : change.mark ? "mark" : "unmark";
    return t(`change.${kind}`, {
      name: change.name,
      n: change.pictures,
      mark: { 1: "✓", "-1": "✗" }[change.mark] ?? t("change.none"),
    });
  }

  async choose(key) {
    this.active = this.active === key ? null : key;
    this.draw();
    if (this.active === null) {
      this.about.hidden = true;
      await this.changed();
      return;
    }
    await this.rank("likely");
  }

  // makes a label active without changing the list
  select(key) {
    this.active = this.list.some((each) => each.class === key) ? key : null;
    if (this.active === null) this.about.hidden = true;
    this.draw();
  }

  get activeName() {
    return this.list.find((each) => each.class === this.active)?.name ?? "";
  }

  ask(mode = this.mode, label = this.active) {
    return { order: mode, label, where: this.where() || null };
  }

  async rank(mode, options = {}) {
    if (this.active === null) return;
    this.mode = mode;
    const key = this.active,
      where = this.where(),
      ask = this.ask(),
      current = this.begin(),
      answer = await api.list(ask);
    if (!current() || this.active !== key) return;
    this.showSummary(answer, where);
    this.show(answer, mode, ask, options);
  }

  // updates the summary of the active label without changing the list
  async tell() {
    const key = this.active,
      where = this.where();
    if (key === null) return;
    const answer = await api.summary(key, where);
    if (this.active === key && where === this.where()) this.showSummary(answer, where);
  }

  // shows the summary of the active label
  showSummary({ summary, revision }, where) {
    this.revision = revision;
    const known = this.list.find((each) => each.class === summary.class);
    if (known) Object.assign(known, { yes: summary.yes, no: summary.no });
    this.draw();
    this.about.hidden = false;
    const { cut } = summary;
    const say = (key, values) => t(where ? `${key}.filtered` : key, values);
    const checked = !cut?.clicks
      ? t("labels.unchecked")
      : say(cut.enough ? "labels.checked" : "labels.few", { n: cut.clicks, ...cut });
    this.cut.textContent = cut ? `${say("labels.found", { n: cut.above })} ${checked}` : t("labels.start");
    this.stop.textContent = say("labels.stop");
    this.stop.hidden = !cut?.stop;
  }

  async mark(tile, mark, key = this.active) {
    if (this.creating) return undefined; // key pressed before the new label is ready
    if (key === null) {
      notice(t("labels.choose"));
      return undefined;
    }
    const now = key === this.active && tile.mark === mark ? 0 : mark;
    const where = this.where(),
      answer = await api.mark(key, [tile.id], now, this.ask(this.mode, key));
    const known = this.list.find((each) => each.class === key);
    if (known) Object.assign(known, { yes: answer.summary.yes, no: answer.summary.no });
    document.getElementById("notice").hidden = true; // its undo button would now undo this mark
    this.revision = answer.revision;
    this.offer(answer);
    if (key === this.active) {
      tile.mark = now;
      this.showSummary(answer, where);
    } else this.draw();
    return answer;
  }

  async undo() {
    const { undone, redo } = await api.undo();
    if (!undone) {
      notice(t("undo.none"));
      return;
    }
    await this.tellChange("undo.done", undone.class === undefined ? undone : redo); // for labels, only the pending redo has the name
  }

  async redo() {
    const { redone, undo } = await api.redo();
    await (redone ? this.tellChange("redo.done", undo) : notice(t("redo.none")));
  }

  async tellChange(key, change) {
    // reports the change that was undone or redone
    await this.load();
    notice(t(key, { what: this.described(change) }));
    await this.changed(change);
  }

  async rename(key) {
    const { name } = this.list.find((each) => each.class === key),
      wanted = await asked(t("labels.rename", { name }), t("searches.name"), t("labels.rename.yes"), { value: name });
    if (!wanted) return;
    await api.rename(key, wanted);
    await this.load();
    await this.changed();
  }

  async drop(key) {
    const { name, yes, no } = this.list.find((each) => each.class === key),
      n = yes + no;
    if (n && !(await confirmed(t("labels.remove.ask", { name, n }), t("labels.remove.yes")))) return;
    await api.drop(key);
    await this.load();
    await this.changed();
    notice(t("undo.removed"));
  }

  async save() {
    const { folder, replaced, classes, held_out: held } = await api.save(this.file.value.trim());
    const right = held.accuracy === undefined ? "" : t("classifier.right", { share: percent(held.accuracy) });
    const text = t(replaced ? "classifier.replaced" : "classifier.saved", { folder, names: classes.join(", ") });
    notice(`${text}${right}${this.where() ? t("classifier.all") : ""}`);
    this.saved.replaceChildren(`${t("classifier.use")} `, element("code", "", folder));
    this.saved.hidden = false;
  }

  draw() {
    this.hint.hidden = this.list.length > 0;
    fill(
      this.place,
      this.list.map((each, place) => {
        const item = element("li"),
          choose = element("button", each.class === this.active ? "name chosen" : "name"),
          rename = element("button", "", "✎"),
          gone = element("button", "", "×");
        choose.setAttribute("aria-pressed", each.class === this.active);
        choose.append(
          element("kbd", "", place < 9 ? String(place + 1) : "·"),
          element("span", "word", each.name),
          element("span", "counts", `✓${each.yes} ✗${each.no}`),
        );
        choose.addEventListener("click", () => this.choose(each.class));
        rename.title = t("labels.rename", { name: each.name });
        rename.setAttribute("aria-label", rename.title);
        rename.addEventListener("click", () => this.rename(each.class));
        gone.title = t("labels.remove", { name: each.name });
        gone.setAttribute("aria-label", gone.title);
        gone.addEventListener("click", () => this.drop(each.class));
        item.append(choose, rename, gone);
        return item;
      }),
    );
  }
}
