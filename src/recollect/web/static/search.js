// The search box: words and dropped or pasted pictures, each with a positive or negative weight.
import { api, element, fill, guarded, named, notice, opens, thumb } from "./api.js";
import { t } from "./strings.js";

const PATIENCE = 300; // milliseconds; the first search also loads the model

export class SearchBox {
  // begin: see app.js; label: label whose marks tiles show; filter: returns the filter; arrange: returns the order;
  // fresh: called before a new search; add: adds dropped pictures to the library
  constructor(begin, show, idle, { label, filter, arrange, fresh, failed, add }) {
    Object.assign(this, { begin, show, idle, label, filter, arrange, fresh, failed, add, terms: [], questions: 0 });
    const get = (id) => document.getElementById(id);
    Object.assign(this, {
      form: get("search"),
      words: get("words"),
      where: get("where"),
      chips: get("terms"),
      box: document.querySelector(".box"),
      file: get("file"),
      adapt: get("adapt"),
      zone: get("drop-add"),
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.fresh();
      this.run();
    });
    get("plus").addEventListener("click", () => this.keep(1));
    get("minus").addEventListener("click", () => this.keep(-1));
    this.adapt.addEventListener("click", () => {
      if (this.missing) {
        notice(this.missing);
        return;
      }
      this.switchAdapt(!this.adapts);
      if (this.terms.length || this.words.value.trim()) this.run();
    });
    get("picture").addEventListener("click", () => this.file.click());
    this.file.addEventListener("change", () => {
      this.upload(this.file.files);
      this.file.value = "";
    });
    for (const kind of ["dragover", "dragleave", "drop"])
      document.addEventListener(kind, (event) => {
        if (!event.dataTransfer?.types.includes("Files")) return; // dropped text is handled by the browser
        event.preventDefault();
        const toAdd = event.target === this.zone,
          over = kind === "dragover";
        this.box.classList.toggle("over", over && !toAdd);
        this.zone.classList.toggle("over", over && toAdd);
        this.zone.hidden = kind === "drop" || (kind === "dragleave" && !event.relatedTarget); // visible while the pointer is in the window
        if (kind === "drop" && toAdd) this.add([...event.dataTransfer.files]);
        else if (kind === "drop") this.upload(event.dataTransfer.files);
      });
    document.addEventListener("paste", (event) => {
      if (event.clipboardData?.files.length) {
        event.preventDefault();
        this.upload(event.clipboardData.files);
      }
    });
    this.upload = guarded(this.upload.bind(this));
    this.run = guarded(this.run.bind(this));
  }

  get adapts() {
    return this.adapt.getAttribute("aria-pressed") === "true";
  }

  switchAdapt(on) {
    this.adapt.setAttribute("aria-pressed", on);
    this.adapt.classList.toggle("chosen", on);
  }

  // reason: why adapting is unavailable, or null
  canAdapt(reason) {
    this.missing = reason;
    this.adapt.setAttribute("aria-disabled", Boolean(reason));
    if (reason) this.adapt.title = reason;
  }

  async upload(chosen) {
    const files = [...chosen],
      before = this.terms.length; // copied, because the list is emptied when the field is cleared
    for (const file of files) {
      try {
        const { upload } = await api.upload(file);
        this.terms.push({ upload, weight: 1, name: file.name, source: URL.createObjectURL(file) });
      } catch (error) {
        if (error.gone) throw error;
        notice(error.message.replace("the upload", file.name));
      }
    }
    this.draw();
    if (this.terms.length > before) await this.run();
  }

  // the current search, for the address
  asked() {
    return { words: this.words.value.trim(), terms: this.terms, where: this.where.value.trim(), adapt: this.adapts };
  }

  restore({ words, terms, where, adapt }) {
    this.words.value = words;
    this.where.value = where;
    this.terms = terms.map((term) => (term.id ? { ...term, name: t("search.picture"), source: thumb(term.id) } : term));
    this.switchAdapt(adapt && !this.missing);
    this.draw();
  }

  like(tile, weight) {
    this.terms.push({ id: tile.id, weight, name: named(tile), source: thumb(tile.id) });
    this.draw();
    return this.run();
  }

  keep(weight) {
    const words = this.words.value.trim();
    if (!words) return this.words.focus();
    this.terms.push({ words, weight, name: words });
    this.words.value = "";
    this.draw();
    return this.run();
  }

  draw() {
    fill(
      this.chips,
      this.terms.map((term, place) => {
        const chip = element("span", term.weight < 0 ? "term away" : "term");
        const turn = element("button", "", term.weight < 0 ? "−" : "+"),
          gone = element("button", "", "×");
        turn.type = gone.type = "button";
        const name = term.name || t("search.picture");
        turn.title = t("term.switch");
        gone.title = t("term.remove");
        turn.setAttribute("aria-label", t(term.weight < 0 ? "term.away" : "term.towards", { name }));
        gone.setAttribute("aria-label", t("term.remove.named", { name }));
        turn.addEventListener("click", () => {
          term.weight = -term.weight;
          this.draw();
          this.run();
        });
        gone.addEventListener("click", () => {
          this.terms.splice(place, 1);
          this.draw();
          this.run();
        });
        chip.append(turn);
        if (term.source) {
          const image = element("img");
          image.src = term.source;
          image.alt = name;
          chip.append(image);
        } else chip.append(element("span", "word", term.name));
        chip.append(gone);
        return chip;
      }),
    );
  }

  async run() {
    const terms = this.terms.map(({ words, id, upload, weight }) => ({
      words: words ?? null,
      id: id ?? null,
      upload: upload ?? null,
      weight,
    }));
    const words = this.words.value.trim();
    if (words) terms.push({ words, weight: 1 });
    const adapts = this.adapts && terms.length > 0,
      where = this.filter();
    const ask = {
        order: "search",
        terms,
        where: where || null,
        adapt: adapts,
        label: this.label(),
        arrange: this.arrange(terms.length > 0),
      },
      current = this.begin(t(adapts ? "status.refining" : "status.searching"), adapts ? 0 : PATIENCE),
      mine = ++this.questions;
    let answer;
    this.missed = false;
    try {
      answer = await api.list(ask);
    } catch (error) {
      this.missed = Boolean(error.gone); // retried when the server is back
      if (adapts && mine === this.questions) {
        // fall back to plain results, also for later searches
        this.switchAdapt(false);
        await this.run();
      } else if (current() && where && error.status === 400) {
        this.failed(error.message);
        return;
      } else if (current()) this.idle();
      throw error;
    }
    if (mine === this.questions) this.show(answer, { ask, where, current: current() }); // ignore late answers to earlier requests
  }
}

// The pictures and captions that an episode learned from, with the ranks before and after.
export class Episode {
  constructor(look) {
    this.look = look;
    const get = (id) => document.getElementById(id);
    Object.assign(this, { place: get("episode"), note: get("episode-note"), pairs: get("episode-pairs"), open: false });
  }

  show({ episode }) {
    this.open = Boolean(episode);
    if (!episode) return;
    const moved = episode.learned.filter(({ before, after }) => before !== after).length;
    this.note.textContent = [
      episode.changed ? t("episode", { n: episode.learned.length, moved }) : t("episode.failed"),
      ...episode.notes,
    ].join(" ");
    this.pairs.replaceChildren(
      ...episode.learned.map((pair) => {
        const figure = element("figure"),
          image = element("img");
        image.loading = "lazy";
        image.src = thumb(pair.id);
        image.alt = pair.id;
        opens(image, () => this.look({ id: pair.id, caption: pair.caption }));
        figure.append(image, element("figcaption", "", `${pair.before} → ${pair.after}: ${pair.caption}`));
        return figure;
      }),
    );
  }
}
