// Every picture sorted by what the clicks taught: doubtful first, by class, none of these.
import { api, element, fill, guarded, percent } from "./api.js";

export class Sorted {
  constructor(begin, show, where) {
    const get = (id) => document.getElementById(id);
    Object.assign(this, { begin, show, where, chosen: "doubtful", note: get("sorted-note"), place: get("sorted-classes") });
    this.choose = guarded((show) => this.load(show));
  }

  async load(show, options = {}) {
    const where = this.where(), current = this.begin(), answer = await api.sorted(show, where);
    if (!current()) return;
    this.chosen = show;
    this.draw(answer, show, where);
    const again = async () => {
      const found = await api.sorted(show, where);
      if (this.chosen === show) this.draw(found, show, where);
      return found;
    };
    this.show(answer, again, options);
  }

  draw(answer, show, where) {
    const { held_out: held, none_rate: rate } = answer;
    const trust = held.accuracy === undefined ? "Too few clicks to hold any out." : `${percent(held.accuracy)} of ${held.examples} held-out clicks right, calibration error ${percent(held.calibration_error)}.`;
    const none = rate ? ` None of these: unlike every example; about ${percent(rate)} of pictures of the classes fall there by mistake.` : "";
    this.note.textContent = `By the classifier of ${where ? "all " : ""}your clicks (${answer.method}). ${trust} In brackets: what cannot be ruled out, nine times in ten.${none}`;
    const choices = [["doubtful", "doubtful first", null], ...answer.classes.map(({ name, pictures }) => [`class:${name}`, name, pictures]), ["none", "none of these", answer.none]];
    fill(this.place, choices.map(([key, name, count]) => {
      const button = element("button", key === show ? "chosen" : "", count === null ? name : `${name} ${count.toLocaleString()}`);
      button.setAttribute("aria-pressed", key === show);
      button.addEventListener("click", () => this.choose(key));
      return button;
    }));
  }
}
