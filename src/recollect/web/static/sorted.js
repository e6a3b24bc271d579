// All pictures sorted by the classifier learned from marks: least certain first, by label, or without a matching label.
import { api, element, fill, guarded } from "./api.js";
import { number, percent, t } from "./strings.js";

export class Sorted {
  // idle: called when loading fails
  constructor(begin, show, where, idle) {
    const get = (id) => document.getElementById(id);
    Object.assign(this, {
      begin,
      show,
      where,
      idle,
      chosen: "doubtful",
      note: get("sorted-note"),
      place: get("sorted-classes"),
    });
    this.choose = guarded((show) => this.load(show));
  }

  async load(show, options = {}) {
    const where = this.where(),
      current = this.begin(options.keep ? "" : t("sorted.waiting")),
      ask = { order: "sorted", show, where: where || null };
    let answer;
    try {
      answer = await api.list(ask);
    } catch (error) {
      if (current()) this.idle();
      throw error;
    }
    if (!current()) return;
    this.chosen = show;
    this.draw(answer, show, where);
    this.show(answer, ask, options);
  }

  draw(answer, show, where) {
    const { held_out: held, none_rate: rate, unchecked } = answer;
    const trust =
      held.accuracy === undefined
        ? t("sorted.few", { n: held.examples ?? 0 })
        : t("sorted.right", { share: percent(held.accuracy), n: held.examples });
    this.note.textContent = [
      t(where ? "sorted.by.all" : "sorted.by"),
      trust,
      rate ? t("sorted.rejected", { share: percent(rate) }) : "",
      unchecked.length ? t("sorted.unchecked", { names: unchecked.join(", ") }) : "",
    ].join(" ");
    const choices = [
      ["doubtful", t("sorted.doubtful"), null],
      ...answer.classes.map(({ name, pictures }) => [`class:${name}`, name, pictures]),
      ["none", t("sorted.none"), answer.none],
    ];
    fill(
      this.place,
      choices.map(([key, name, count]) => {
        const button = element(
          "button",
          key === show ? "chosen" : "",
          count === null ? name : `${name} ${number(count)}`,
        );
        button.setAttribute("aria-pressed", key === show);
        button.addEventListener("click", () => this.choose(key));
        return button;
      }),
    );
  }
}
