// Modal dialogs for confirmation and text input.
import { element } from "./api.js";
import { t } from "./strings.js";

// asks for confirmation; returns whether the user confirmed
export async function confirmed(question, doIt, ...contents) {
  return (await open(question, doIt, contents)) === "yes";
}

// asks for a text; returns null if canceled
export async function asked(question, label, doIt, { value = "", contents = [] } = {}) {
  const field = element("label", "asked", label),
    input = element("input");
  input.required = true;
  input.value = value;
  field.append(input);
  return (await open(question, doIt, [...contents, field])) === "yes" ? input.value.trim() : null;
}

function open(question, doIt, contents) {
  const dialog = element("dialog", "question"),
    form = element("form"),
    buttons = element("div", "modes"),
    text = element("p", "", question);
  const cancel = element("button", "", t("cancel")),
    yes = element("button", "main", doIt);
  form.method = "dialog";
  yes.value = "yes";
  cancel.formNoValidate = true;
  cancel.type = "button"; // so Enter in a field presses the other button
  cancel.addEventListener("click", () => dialog.close());
  text.id = "question-text";
  dialog.setAttribute("aria-labelledby", text.id);
  buttons.append(cancel, yes);
  form.append(text, ...contents, buttons);
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    }),
  );
}
