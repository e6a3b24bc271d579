// One picture, large, with everything known about it.
import { api, element, named, notice, picture } from "./api.js";
import { t } from "./strings.js";

export class Viewer {
  // like: searches for more or less like it; beside: its neighbor in the list; step: opens that neighbor
  constructor(like, beside, step) {
    this.beside = beside;
    const get = (id) => document.getElementById(id);
    Object.assign(this, { dialog: get("viewer"), image: get("view"), none: get("view-none"), caption: get("view-caption"), about: get("view-about"), steps: [[get("before"), -1], [get("behind"), 1]] });
    for (const [button, by] of this.steps) button.addEventListener("click", () => step(by));
    this.image.addEventListener("error", () => { this.image.hidden = true; this.none.hidden = false; }); // gone, damaged, or none was kept
    this.stage = get("view-stage");
    this.image.addEventListener("load", () => { this.image.style.maxWidth = `${2.5 * this.image.naturalWidth}px`; }); // small pictures are enlarged, but not until they blur
    this.image.addEventListener("click", () => this.stage.classList.toggle("full"));
    this.dialog.addEventListener("click", (event) => { if ([this.dialog, this.stage].includes(event.target)) this.dialog.close(); });
    this.copy = get("copy");
    this.copy.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(this.path); notice(t("viewer.copied")); } catch { notice(this.path); } // a page that is not encrypted may not copy
    });
    get("close").addEventListener("click", () => this.dialog.close());
    for (const [id, weight] of [["more", 1], ["less", -1]]) get(id).addEventListener("click", () => { this.dialog.close(); like(this.tile, weight); });
  }

  say(captions) { // all that a picture has
    this.caption.replaceChildren(...captions.map((text) => element("li", "", text)));
    this.caption.hidden = !captions.length;
  }

  async open(tile) {
    this.tile = tile;
    this.image.hidden = false; this.none.hidden = true; this.copy.hidden = true;
    this.stage.classList.remove("full");
    this.image.src = picture(tile.id);
    this.image.alt = named(tile);
    this.say([named(tile)]);
    this.about.replaceChildren();
    const near = this.steps.map(([, by]) => this.beside(tile, by));
    for (const [place, [button]] of this.steps.entries()) {
      button.hidden = !near.some(Boolean);
      button.disabled = !near[place];
    }
    if (!this.dialog.open) this.dialog.showModal();
    const { captions, files, labels, facts, metadata } = await api.item(tile.id);
    if (this.tile !== tile) return; // another was opened meanwhile
    this.say(captions);
    this.path = files.find((file) => file.startsWith("/") || /^[A-Z]:/.test(file)) ?? "";
    this.copy.hidden = !this.path;
    const { width, height, ...others } = facts, size = width ? { [t("viewer.size")]: `${width} × ${height}` } : {};
    const rows = { ...(files.length ? { [t("viewer.file", { n: files.length })]: files.join("\n") } : {}), ...size, ...others, ...(labels.length ? { [t("viewer.labels")]: labels.join(", ") } : {}), ...metadata };
    for (const [name, value] of Object.entries(rows)) this.about.append(element("dt", "", name), element("dd", "", typeof value === "object" ? JSON.stringify(value) : String(value)));
  }
}
