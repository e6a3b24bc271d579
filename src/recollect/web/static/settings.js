// Settings, help, libraries and adding pictures.
import { api, element, guarded, notice, thumb } from "./api.js";
import { asked } from "./dialogs.js";
import { store, stored } from "./storage.js";
import { language, languages, t } from "./strings.js";

const KEYS = [
  [
    "help.search",
    [
      ["/", "help.search.focus"],
      ["Enter", "help.open"],
      ["Esc", "help.close"],
    ],
  ],
  [
    "help.move",
    [
      ["← ↑ → ↓", "help.arrows"],
      ["Home End", "help.ends"],
      ["PgUp PgDn", "help.pages"],
    ],
  ],
  [
    "select",
    [
      ["s", "help.select"],
      ["Ctrl A", "help.select.all"],
      ["f", "help.favorite"],
    ],
  ],
  [
    "viewer",
    [
      ["← →", "help.arrows"],
      ["+ −", "help.zoom"],
      ["0", "help.whole"],
      ["i", "help.info"],
    ],
  ],
  [
    "labels",
    [
      ["␣", "help.yes"],
      ["x", "help.no"],
      ["1 – 9", "help.label"],
      ["u  Ctrl Z", "undo"],
      ["r", "redo"],
    ],
  ],
  [
    "view.map",
    [
      ["+ −", "help.zoom"],
      ["Enter", "help.middle"],
      ["⇧", "help.loop"],
    ],
  ],
];
const THEMES = ["system", "light", "dark"];

function theme(which) {
  if (THEMES.includes(which) && which !== "system") document.documentElement.dataset.theme = which;
  else delete document.documentElement.dataset.theme;
}
theme(stored("theme"));

function dialog(title, ...contents) {
  const box = element("dialog", "sheet"),
    heading = element("h2", "", title),
    close = element("button", "main", t("close"));
  heading.id = "sheet-title";
  box.setAttribute("aria-labelledby", heading.id);
  close.addEventListener("click", () => box.close());
  box.addEventListener("click", (event) => {
    if (event.target === box) box.close();
  });
  box.addEventListener("close", () => box.remove());
  box.append(heading, ...contents, close);
  document.body.append(box);
  box.showModal();
  return box;
}

function choice(label, options, value, change) {
  const row = element("label", "setting", label),
    select = element("select");
  select.append(
    ...options.map(([key, name]) => {
      const option = element("option", "", name);
      option.value = key;
      return option;
    }),
  );
  select.value = value;
  select.addEventListener("change", () => change(select.value));
  row.append(select);
  return row;
}

export function settings(info) {
  if (document.querySelector("dialog[open]")) return;
  const add = element("button", "", t("folder.add")),
    file = element("input"),
    pictures = element("button", "", t("add.files")),
    row = element("div", "modes");
  add.addEventListener("click", guarded(addFolder));
  Object.assign(file, { type: "file", accept: "image/*", multiple: true, hidden: true });
  file.addEventListener("change", () => {
    addFiles([...file.files]);
    document.querySelector(".sheet")?.close();
  });
  pictures.addEventListener("click", () => file.click());
  const removed = element("button", "", t("settings.removed"));
  removed.addEventListener("click", guarded(removedPictures));
  row.append(add, pictures, file, removed);
  const about = element("dl");
  for (const [name, value] of [
    [t("settings.library"), info.name],
    [t("settings.place"), info.address],
    [t("settings.model"), info.model],
    [t("settings.adds"), info.adds_to],
  ])
    about.append(element("dt", "", name), element("dd", "", value));
  const unreadable = element("details");
  unreadable.hidden = !info.unreadable;
  unreadable.append(
    element("summary", "", t("settings.unreadable", { n: info.unreadable })),
    ...info.unreadable_first.map((why) => element("p", "hint", why)),
  );
  dialog(
    t("settings"),
    choice(
      t("settings.theme"),
      THEMES.map((each) => [each, t(`settings.theme.${each}`)]),
      stored("theme") ?? "system",
      (value) => {
        store("theme", value);
        theme(value);
      },
    ),
    choice(t("settings.language"), languages, language, (value) => {
      store("language", value);
      location.reload();
    }),
    about,
    unreadable,
    row,
  );
}

export function help() {
  if (document.querySelector("dialog[open]")) return;
  const parts = KEYS.map(([title, rows]) => {
    const part = element("section"),
      list = element("dl");
    for (const [key, what] of rows) {
      const name = element("dt");
      name.append(element("kbd", "", key));
      list.append(name, element("dd", "", t(what)));
    }
    part.append(element("h3", "", t(title)), list);
    return part;
  });
  const box = element("div", "keys-table");
  box.append(...parts);
  dialog(t("help"), box);
}

// lets the user switch to a known library, or to another one by its path
export async function libraries() {
  if (document.querySelector("dialog[open]")) return;
  const { libraries: known } = await api.libraries(),
    list = element("ul", "libraries"),
    other = element("button", "", t("libraries.other"));
  const show = (key) => {
    location.href = key ? `/library/${key}/` : "/";
  };
  list.append(
    ...known.map(({ key, name, place, current }) => {
      const item = element("li"),
        button = element("button", current ? "chosen" : "");
      button.append(element("b", "", name), element("span", "", place));
      button.setAttribute("aria-pressed", current);
      button.addEventListener("click", () => show(key));
      item.append(button);
      return item;
    }),
  );
  other.addEventListener(
    "click",
    guarded(async () => {
      const place = await asked(t("libraries.ask"), t("folder.name"), t("libraries.open"));
      if (place) show((await api.openLibrary(place)).key);
    }),
  );
  dialog(t("libraries"), list, other);
}

// uploads files to a folder of the library
export const addFiles = guarded(async (files) => {
  let added = null,
    n = 0;
  const errors = [];
  for (const file of files) {
    notice(t("add.busy", { n: n + 1, of: files.length }));
    try {
      added = await api.addFile(file);
      n++;
    } catch (error) {
      if (error.gone) throw error;
      errors.push(error.message);
    }
  }
  if (added && !added.watched) await api.addFolder(added.folder);
  notice([added ? t("add.done", { n, folder: added.folder }) : "", ...errors].filter(Boolean).join(" "));
});

// the pictures that were removed from the library, to choose from
async function removedPictures() {
  const { tiles } = await api.removed(),
    list = element("ul", "libraries"),
    restore = element("button", "main", t("removed.restore"));
  const chosen = () => [...list.querySelectorAll("[aria-pressed=true]")].map((each) => each.value);
  list.append(
    ...tiles.map(({ id, name }) => {
      const item = element("li"),
        button = element("button"),
        image = element("img");
      Object.assign(image, { src: thumb(id), alt: "", loading: "lazy" });
      button.value = id;
      button.setAttribute("aria-pressed", false);
      button.append(image, element("span", "", name));
      button.addEventListener("click", () => {
        button.setAttribute("aria-pressed", button.classList.toggle("chosen"));
        restore.disabled = !chosen().length;
      });
      item.append(button);
      return item;
    }),
  );
  restore.disabled = true;
  document.querySelector(".sheet").close();
  const box = dialog(
    t("removed"),
    element("p", "hint", t(tiles.length ? "removed.hint" : "removed.none")),
    list,
    ...(tiles.length ? [restore] : []),
  );
  restore.addEventListener(
    "click",
    guarded(async () => {
      const ids = chosen();
      await api.restore(ids);
      box.close();
      notice(t("removed.done", { n: ids.length }));
    }),
  );
}

async function addFolder() {
  const folder = await asked(t("folder.ask"), t("folder.name"), t("folder.add.do"));
  if (!folder) return;
  await api.addFolder(folder);
  document.querySelector(".sheet")?.close();
  notice(t("folder.adding"));
}
