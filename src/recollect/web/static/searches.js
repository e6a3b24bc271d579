// Saved searches (stored by the server) and recent searches (stored by this browser). Each is an address of the page.
import { api, element, fill, guarded, notice, offer } from "./api.js";
import { asked } from "./dialogs.js";
import { store, stored } from "./storage.js";
import { t } from "./strings.js";

const RECENT = 5;
const key = `recent.${location.pathname}`;
const read = () => {
  try {
    return JSON.parse(stored(key)) ?? [];
  } catch {
    return [];
  }
};

export class Searches {
  // go: opens an address; now: returns the current address and its name ("" without a search)
  constructor({ go, now }) {
    Object.assign(this, { go, now, saved: {}, recent: read(), place: document.getElementById("searches") });
    for (const action of ["load", "save", "drop"]) this[action] = guarded(this[action].bind(this));
  }

  async load() {
    this.update(await api.searches());
  }

  update({ searches }) {
    this.saved = searches;
    this.draw();
  }

  // records the search that is shown
  note() {
    const { address, name } = this.now();
    if (name && !Object.values(this.saved).includes(address)) {
      this.recent = [
        { address, name },
        ...this.recent.filter((each) => each.address !== address && each.name !== name),
      ].slice(0, RECENT);
      store(key, JSON.stringify(this.recent));
    }
    this.draw();
  }

  async save() {
    const { address, name } = this.now(),
      chosen = await asked(t("searches.save.ask"), t("searches.name"), t("searches.save.do"), { value: name });
    if (!chosen) return;
    this.update(await api.saveSearch(chosen, address));
    notice(t("searches.saved", { name: chosen }));
  }

  async drop(name) {
    const address = this.saved[name];
    this.update(await api.saveSearch(name, null));
    offer(
      t("searches.removed", { name }),
      t("undo"),
      guarded(async () => this.update(await api.saveSearch(name, address))),
    );
  }

  draw() {
    const { address, name } = this.now(),
      saved = Object.entries(this.saved),
      known = new Set(Object.values(this.saved));
    const rows = [
      ...saved,
      ...this.recent.filter((each) => !known.has(each.address)).map((each) => [each.name, each.address]),
    ];
    this.place.hidden = !rows.length && !name;
    const list = element("ul");
    list.append(
      ...rows.map(([text, to], at) => {
        const item = element("li"),
          button = element("button", to === address ? "chosen" : ""),
          mine = at < saved.length;
        button.type = "button";
        button.title = text;
        button.append(element("span", "word", `${mine ? "★ " : ""}${text}`));
        button.setAttribute("aria-pressed", to === address);
        button.addEventListener("click", () => this.go(to));
        item.append(button);
        if (mine) {
          const gone = element("button", "gone", "×");
          gone.type = "button";
          gone.title = t("searches.remove", { name: text });
          gone.setAttribute("aria-label", gone.title);
          gone.addEventListener("click", () => this.drop(text));
          item.append(gone);
        }
        return item;
      }),
    );
    const save = element("button", "more", t("searches.save"));
    save.type = "button";
    save.hidden = !name || known.has(address);
    save.addEventListener("click", this.save);
    fill(this.place, [element("h2", "", t("searches")), list, save]);
  }
}
