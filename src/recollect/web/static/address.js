// Stores the state of the page in its address, so Back, reload and copied links work.

const LISTS = ["likely", "next", "cut", "clicked"];

export function write({ words, terms, where, facets, arrange, adapt, view, label, order, show, open }) {
  const params = new URLSearchParams();
  if (words) params.set("q", words);
  for (const { words: text, id, weight } of terms)
    if (text || id) params.append("t", `${weight < 0 ? "-" : "+"}${text ? `w:${text}` : `p:${id}`}`); // uploads cannot be part of an address
  if (where) params.set("where", where);
  for (const [name, value] of Object.entries(facets)) params.append("in", `${name}:${value}`);
  if (arrange) params.set("sort", arrange);
  if (adapt) params.set("refine", "1");
  if (view !== "grid") params.set("view", view);
  if (view === "sorted" && show !== "doubtful") params.set("show", show);
  if (label !== null) params.set("label", label);
  if (LISTS.includes(order)) params.set("order", order);
  if (open) params.set("open", open);
  const text = params.toString();
  return text ? `?${text}` : location.pathname;
}

export function read() {
  const params = new URLSearchParams(location.search),
    label = Number.parseInt(params.get("label") ?? "", 10),
    order = params.get("order");
  const terms = params
    .getAll("t")
    .filter((each) => /^[+-][wp]:./s.test(each))
    .map((each) => {
      const weight = each[0] === "-" ? -1 : 1,
        text = each.slice(3);
      return each[1] === "w" ? { words: text, weight, name: text } : { id: text, weight };
    });
  const facets = Object.fromEntries(
    params
      .getAll("in")
      .filter((each) => each.includes(":"))
      .map((each) => [each.slice(0, each.indexOf(":")), each.slice(each.indexOf(":") + 1)]),
  );
  return {
    facets,
    arrange: ["newest", "oldest", "name", "score"].includes(params.get("sort")) ? params.get("sort") : "",
    words: params.get("q") ?? "",
    terms,
    where: params.get("where") ?? "",
    adapt: params.has("refine"),
    view: ["sorted", "map", "duplicates"].includes(params.get("view")) ? params.get("view") : "grid",
    show: params.get("show") ?? "doubtful",
    label: Number.isNaN(label) ? null : label,
    order: LISTS.includes(order) ? order : null,
    open: params.get("open"),
  };
}

// removes the open picture from an address
export const base = (address) => {
  const params = new URLSearchParams(address.includes("?") ? address.slice(address.indexOf("?")) : "");
  params.delete("open");
  return params.toString();
};
