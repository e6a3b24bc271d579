// Browsing: facets with counts in a sidebar, and a timeline.
import { api, element, fill, guarded } from "./api.js";
import { language, number, t } from "./strings.js";

const SHOWN = 8,
  MOST = 300;
const FACETS = ["folder", "month", "camera", "label", "source"];
const PAIR = { label: "clicked", clicked: "label" }; // labels from sources, and labels from marks
const quoted = (text) => `'${text.replaceAll("'", "''")}'`;
const CONDITIONS = {
  folder: (value) => `folder = ${quoted(value)}`,
  month: (value) => `taken like ${quoted(`${value}%`)}`,
  camera: (value) => `camera = ${quoted(value)}`,
  label: (value) => `label = ${quoted(value)}`,
  clicked: (value) => `clicked = ${quoted(value)}`,
  source: (value) => `source = ${quoted(value)}`,
};
const month = new Intl.DateTimeFormat(language, { month: "long", year: "numeric", timeZone: "UTC" });
export const monthName = (text) => (text.length < 7 ? text : month.format(new Date(`${text}-01T00:00:00Z`)));

// builds a filter from the typed filter and the chosen facets, except the facet ``without``
export function filterOf(typed, chosen, without = "") {
  const parts = Object.entries(chosen)
    .filter(([name]) => name !== without)
    .map(([name, value]) => CONDITIONS[name](value));
  if (!parts.length) return typed;
  return [...(typed ? [`(${typed})`] : []), ...parts].join(" and ");
}

export class Browse {
  // typed: returns the typed filter; changed: called when a facet is chosen or cleared
  constructor(typed, changed) {
    Object.assign(this, {
      typed,
      changed,
      chosen: {},
      open: new Set(),
      place: document.getElementById("facets"),
      asked: "",
    });
    this.load = guarded(this.load.bind(this));
  }

  get filter() {
    return filterOf(this.typed(), this.chosen);
  }

  restore(chosen) {
    this.chosen = Object.fromEntries(Object.entries(chosen).filter(([name]) => CONDITIONS[name]));
  }

  choose(name, value) {
    if (name === "label" || name === "clicked") {
      delete this.chosen.label;
      delete this.chosen.clicked;
    }
    if (value === null || this.chosen[name] === value) delete this.chosen[name];
    else this.chosen[name] = value;
    return this.changed();
  }

  // loads the counts under the filter; counts of a chosen facet ignore that facet, so the user can choose another value
  async load(stamp) {
    const { filter, chosen } = this,
      asked = JSON.stringify([filter, chosen, stamp]);
    if (asked === this.asked) return;
    this.asked = asked;
    const taken = new Set(Object.keys(chosen).flatMap((name) => (name in PAIR ? [name, PAIR[name]] : [name])));
    const ask = async (which, where) => {
      try {
        return (await api.facets(which, where)).facets;
      } catch (error) {
        if (error.status === 400) return Object.fromEntries(which.map((name) => [name, []]));
        throw error;
      }
    };
    const found = await Promise.all([
      ask(
        [...FACETS, "clicked"].filter((name) => !taken.has(name)),
        filter,
      ),
      ...[...taken].map((name) => ask([name], filterOf(this.typed(), chosen, name in chosen ? name : PAIR[name]))),
    ]);
    if (asked !== this.asked) return;
    this.counts = Object.assign({}, ...found);
    this.draw();
  }

  draw() {
    const { counts, chosen } = this;
    fill(
      this.place,
      FACETS.flatMap((name) => {
        const rows =
          {
            folder: () => this.folders(),
            month: () => this.months(),
            label: () => [
              ...counts.clicked.map(([value, count]) => ["clicked", value, value, count, 0]),
              ...counts.label.map(([value, count]) => ["label", value, value, count, 0]),
            ],
          }[name]?.() ?? counts[name].map(([value, count]) => [name, value, value, count, 0]);
        if (!rows.length || (name === "source" && rows.length === 1 && !chosen.source)) return [];
        const section = element("section"),
          list = element("ul"),
          all = this.open.has(name),
          shown = rows.filter((row, place) => place < (all ? MOST : SHOWN) || chosen[row[0]] === row[1]);
        list.append(
          ...shown.map(([facet, value, text, count, depth]) => {
            const item = element("li"),
              button = element("button", chosen[facet] === value ? "chosen" : "");
            button.type = "button";
            button.setAttribute("aria-pressed", chosen[facet] === value);
            button.style.paddingInlineStart = `${0.5 + 0.8 * depth}rem`;
            button.append(element("span", "word", text), element("span", "count", number(count)));
            button.title = value;
            button.addEventListener(
              "click",
              guarded(() => this.choose(facet, value)),
            );
            item.append(button);
            return item;
          }),
        );
        section.append(element("h2", "", t(`facet.${name}`)), list);
        if (rows.length > shown.length || (all && rows.length > SHOWN)) {
          const more = element("button", "more", all ? t("facet.fewer") : t("facet.all", { n: rows.length }));
          more.type = "button";
          more.addEventListener("click", () => {
            if (all) this.open.delete(name);
            else this.open.add(name);
            this.draw();
          });
          section.append(more);
        }
        return [section];
      }),
    );
  }

  // returns top-level folders, and the subfolders of the chosen folder and its parents
  folders() {
    const chosen = this.chosen.folder ?? "",
      counts = this.counts.folder;
    const above = (folder) => folder.slice(0, Math.max(0, folder.lastIndexOf("/")));
    const children = (parent) =>
      counts
        .filter(([folder]) => above(folder) === parent)
        .sort(([one], [two]) => one.localeCompare(two, undefined, { numeric: true }))
        .flatMap(([folder, count]) => [
          ["folder", folder, folder.slice(parent ? parent.length + 1 : 0), count, folder.split("/").length - 1],
          ...(chosen === folder || chosen.startsWith(`${folder}/`) ? children(folder) : []),
        ]);
    const top = children("");
    return top.length === 1 && !chosen ? [...top, ...children(top[0][1])] : top; // expand a single top-level folder
  }

  // returns years, and the months of the chosen year
  months() {
    const years = new Map(),
      chosen = this.chosen.month ?? "";
    for (const [value, count] of this.counts.month)
      years.set(value.slice(0, 4), (years.get(value.slice(0, 4)) ?? 0) + count);
    return [...years].flatMap(([year, count]) => [
      ["month", year, year, count, 0],
      ...(chosen.startsWith(year) || years.size === 1
        ? this.counts.month
            .filter(([value]) => value.startsWith(year))
            .map(([value, of]) => ["month", value, monthName(value), of, 1])
        : []),
    ]);
  }
}

// A bar of dates at the edge of the list: drag to jump to a month.
export class Timeline {
  constructor(grid) {
    const get = (id) => document.getElementById(id);
    Object.assign(this, { grid, place: get("timeline"), hand: get("timeline-hand"), months: [] });
    const { place } = this;
    place.addEventListener("pointerdown", (event) => {
      place.setPointerCapture(event.pointerId);
      this.drag(event);
    });
    place.addEventListener("pointermove", (event) => {
      if (event.buttons) this.drag(event);
    });
    place.addEventListener("pointerup", () => place.classList.remove("dragged"));
    place.addEventListener("pointercancel", () => place.classList.remove("dragged"));
    place.addEventListener("keydown", (event) => this.key(event));
    for (const name of ["scroll", "laid"]) grid.place.addEventListener(name, () => this.point(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(place);
  }

  // months: [month, pictures] in list order; fewer than two hide the bar
  show(months) {
    let start = 0;
    this.months = months.map(([name, count]) => {
      start += count;
      return { name, start: start - count };
    });
    this.dated = start;
    this.place.hidden = this.months.length < 2;
    this.draw();
  }

  draw() {
    const { place, grid, months } = this,
      height = place.clientHeight;
    if (place.hidden || !height || !grid.total) return;
    let year = "",
      last = -Infinity;
    const marks = [];
    for (const { name, start } of months) {
      const y = (start / grid.total) * (height - 16);
      if (name.slice(0, 4) === year || y - last < 18) continue;
      year = name.slice(0, 4);
      last = y;
      const mark = element("span", "year", year);
      mark.style.top = `${y}px`;
      marks.push(mark);
    }
    for (const old of place.querySelectorAll(".year")) old.remove();
    place.prepend(...marks);
    this.point();
  }

  monthAt(index) {
    let found = this.months[0];
    for (const each of this.months)
      if (each.start <= index) found = each;
      else break;
    return index >= this.dated ? t("timeline.undated") : monthName(found.name);
  }

  point() {
    const { place, grid, hand } = this;
    if (place.hidden || !grid.total) return;
    const index = grid.firstSeen,
      seen = grid.height - grid.place.clientHeight,
      text = this.monthAt(index);
    hand.style.top = `${(seen > 0 ? grid.offset / seen : 0) * (place.clientHeight - 16)}px`;
    if (hand.textContent !== text) hand.textContent = text;
    place.setAttribute("aria-valuenow", index + 1);
    place.setAttribute("aria-valuemax", grid.total);
    place.setAttribute("aria-valuetext", text);
  }

  drag(event) {
    const { place, grid } = this,
      box = place.getBoundingClientRect();
    place.classList.add("dragged");
    grid.offset =
      Math.min(1, Math.max(0, (event.clientY - box.top - 8) / (box.height - 16))) *
      (grid.height - grid.place.clientHeight);
    grid.draw();
    this.point();
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -Infinity, End: Infinity }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const { grid, months } = this,
      now = months.findLastIndex(({ start }) => start <= grid.firstSeen);
    grid.scrollTo(months[Math.max(0, Math.min(now + by, months.length - 1))].start);
    this.point();
  }
}
