// Questions that must be answered before something is removed or changed.
import { element } from "./api.js";
import { t } from "./strings.js";

// a question with Cancel and one button that does it; whether that button was pressed
export function confirmed(question, doIt) {
  const dialog = element("dialog", "question"), form = element("form"), buttons = element("div", "modes"), text = element("p", "", question);
  const cancel = element("button", "", t("cancel")), yes = element("button", "main", doIt);
  form.method = "dialog";
  yes.value = "yes";
  text.id = "question-text";
  dialog.setAttribute("aria-labelledby", text.id);
  buttons.append(cancel, yes);
  form.append(text, buttons);
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue === "yes"); }));
}
