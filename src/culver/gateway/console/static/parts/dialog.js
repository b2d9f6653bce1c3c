// Dialogs: Escape closes, focus returns to where it was, and what is dangerous wants its name typed.

import { h } from "../dom.js";
import { button } from "./page.js";

/**
 * Shows a dialog. `act` is called by the main button (or Enter); when it returns false or throws, the dialog stays open
 * and shows why.
 */
export function openDialog({ title, body, action, act, danger = false, wide = false }) {
  const complaint = h("p", { class: "complaint", role: "alert" });
  const main =
    action && h("button", { class: danger ? "button danger" : "button main", type: "submit" }, action);
  const form = h(
    "form",
    { method: "dialog" },
    h(
      "header",
      {},
      h("h2", {}, title),
      h(
        "button",
        { class: "icon-button", type: "button", "aria-label": "Close", onclick: () => dialog.close() },
        "✕",
      ),
    ),
    h("div", { class: "body" }, body, complaint),
    h(
      "footer",
      {},
      button(action ? "Cancel" : "Close", () => dialog.close()),
      main,
    ),
  );
  const dialog = h("dialog", { class: wide ? "wide" : null, "aria-label": title }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (main?.disabled) return;
    if (main) main.disabled = true;
    complaint.textContent = "";
    try {
      if ((await act?.()) !== false) dialog.close();
    } catch (error) {
      complaint.textContent = [error.message, error.remedy].filter(Boolean).join(" ");
    } finally {
      if (main) main.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  dialog.querySelector(".body input, .body select, .body textarea")?.focus();
  return { dialog, main, complaint };
}

/** Asks for the name of the thing before it is destroyed. */
export function confirmByName({ title, text, name, action, act }) {
  const input = h("input", {
    class: "mono",
    autocomplete: "off",
    spellcheck: "false",
    "aria-label": `Type ${name} to confirm`,
  });
  const { main } = openDialog({
    title,
    danger: true,
    action,
    act,
    body: [
      h("p", {}, text),
      h("label", { class: "field" }, h("span", {}, "Type ", h("code", {}, name), " to confirm"), input),
    ],
  });
  main.disabled = true;
  input.addEventListener("input", () => {
    main.disabled = input.value !== name;
  });
}
