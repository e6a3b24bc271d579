// One picture, large, with all that is known of it.
import { api, element, picture } from "./api.js";

export class Viewer {
  // like: searches for more or less of it; beside, step: what lies before or behind it in a list, and going there
  constructor(like, beside, step) {
    this.beside = beside;
    const get = (id) => document.getElementById(id);
    Object.assign(this, { dialog: get("viewer"), image: get("view"), none: get("view-none"), caption: get("view-caption"), about: get("view-about"), steps: [[get("before"), -1], [get("behind"), 1]] });
    for (const [button, by] of this.steps) button.addEventListener("click", () => step(by));
    this.image.addEventListener("error", () => { this.image.hidden = true; this.none.hidden = false; }); // gone, damaged, or none was kept
    get("close").addEventListener("click", () => this.dialog.close());
    for (const [id, weight] of [["more", 1], ["less", -1]]) get(id).addEventListener("click", () => { this.dialog.close(); like(this.version, this.tile, weight); });
  }

  say(captions) { // all that a picture has
    this.caption.replaceChildren(...captions.map((text) => element("li", "", text)));
    this.caption.hidden = !captions.length;
  }

  async open(version, tile) {
    Object.assign(this, { version, tile });
    this.image.hidden = false; this.none.hidden = true;
    this.image.src = picture(version, tile.row);
    this.image.alt = tile.caption || tile.id;
    this.say([this.image.alt]);
    this.about.replaceChildren();
    const near = this.steps.map(([, by]) => this.beside(tile, by));
    for (const [place, [button]] of this.steps.entries()) {
      button.hidden = !near.some(Boolean);
      button.disabled = !near[place];
    }
    if (!this.dialog.open) this.dialog.showModal();
    const known = await api.item(version, tile.row);
    if (this.tile !== tile) return; // another was opened meanwhile
    const rows = { id: known.id, source: known.source, ...(known.file ? { file: known.file } : {}), ...(tile.score === null || tile.score === undefined ? {} : { score: tile.score.toFixed(4) }), ...known.metadata };
    this.say(known.captions);
    for (const [name, value] of Object.entries(rows)) this.about.append(element("dt", "", name), element("dd", "", typeof value === "object" ? JSON.stringify(value) : String(value)));
  }
}
