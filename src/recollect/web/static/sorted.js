// Every picture sorted by what the clicks taught: least certain first, by label, no label fits.
import { api, counted, element, fill, guarded, percent } from "./api.js";

export class Sorted {
  constructor(begin, show, where) {
    const get = (id) => document.getElementById(id);
    Object.assign(this, { begin, show, where, chosen: "doubtful", note: get("sorted-note"), place: get("sorted-classes") });
    this.choose = guarded((show) => this.load(show));
  }

  async load(show, options = {}) {
    const where = this.where(), current = this.begin(), ask = { order: "sorted", show, where: where || null }, answer = await api.list(ask);
    if (!current()) return;
    this.chosen = show;
    this.draw(answer, show, where);
    this.show(answer, ask, options);
  }

  draw(answer, show, where) {
    const { held_out: held, none_rate: rate } = answer;
    const trust = held.accuracy === undefined ? `${counted(held.examples ?? 0, "held-out mark")}: too few examples to tell how often it is right.` : `${percent(held.accuracy)} of ${held.examples} held-out marks right, calibration error ${percent(held.calibration_error)}.`;
    const none = rate ? ` "No label fits" holds pictures unlike every example; about ${percent(rate)} of pictures that have a label end up there by mistake.` : "";
    this.note.textContent = `Sorted by a classifier learned from ${where ? "all " : ""}your marks (${answer.method}). ${trust}${held.accuracy === undefined ? "" : " In brackets: other labels that are possible (the right one is among them 9 times in 10)."}${none}`;
    const choices = [["doubtful", "Least certain first", null], ...answer.classes.map(({ name, pictures }) => [`class:${name}`, name, pictures]), ["none", "No label fits", answer.none]];
    fill(this.place, choices.map(([key, name, count]) => {
      const button = element("button", key === show ? "chosen" : "", count === null ? name : `${name} ${count.toLocaleString()}`);
      button.setAttribute("aria-pressed", key === show);
      button.addEventListener("click", () => this.choose(key));
      return button;
    }));
  }
}
