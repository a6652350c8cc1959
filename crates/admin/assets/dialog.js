// Asking before acting.

import { notice } from "./notice.js";
import { button } from "./parts.js";
import { h, mount } from "./view.js";

/** Opens a dialog; `view({ close, redraw })` describes what is in it. Resolves when it is closed. */
export function open(label, view) {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", label);
  document.getElementById("dialogs").append(dialog);
  const draw = mount(dialog);
  const context = { close: () => dialog.close(), redraw: () => draw(view(context)) };
  context.redraw();
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.onclose = () => {
      dialog.remove();
      resolve();
    };
  });
}

/**
 * Asks, acts on yes, says how it went. `prepare()` may find out first what would happen, and its answer is
 * passed on to `text`, `confirm` and `act`.
 */
export function ask({ title, prepare, text, fields, confirm, danger, act }) {
  const state = { found: prepare ? undefined : {}, busy: false, failure: null };
  return open(title, ({ close, redraw }) => {
    if (prepare && !state.asked) {
      state.asked = true;
      prepare().then((found) => {
        state.found = found;
      }, (error) => {
        state.failure = error.message;
      }).then(redraw);
    }
    const yes = async () => {
      Object.assign(state, { busy: true, failure: null });
      redraw();
      try {
        notice(await act(state.found));
        close();
      } catch (error) {
        Object.assign(state, { busy: false, failure: error.message });
        redraw();
      }
    };
    const ready = state.found !== undefined && !state.found.nothing && !state.busy;
    return h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          if (ready) yes();
        },
      },
      h("h2", null, title),
      h(
        "div.dialog-text",
        { "aria-live": "polite" },
        state.found ? text(state.found) : !state.failure && h("p.soft", null, "Counting…"),
        state.failure && h("p.bad", { role: "alert" }, state.failure),
      ),
      state.found && fields?.(redraw),
      h(
        "div.dialog-buttons",
        null,
        button("Cancel", { onclick: close, autofocus: danger }),
        h(
          "button.button",
          { type: "submit", class: danger ? "danger" : "primary", disabled: !ready },
          state.busy ? "Working…" : state.found ? confirm(state.found) : "…",
        ),
      ),
    );
  });
}
