// An event's payload: not even fetched before somebody asks, and only for operators.

import { get } from "./api.js";
import { size } from "./format.js";
import { button, card } from "./parts.js";
import { h } from "./view.js";

export function payload(context, event) {
  const { state, operator, payloads } = context;
  const ask = async () => {
    state.payload = { asked: true };
    context.redraw();
    try {
      state.payload = await get(context.path("events", event.id, "payload"));
    } catch (error) {
      state.payload = { failure: error.message };
    }
    context.redraw();
  };
  const hide = () => {
    state.payload = undefined;
    context.redraw();
  };
  const shown = state.payload?.payload !== undefined;
  return card(
    "Payload",
    { aside: h("span.soft", null, size(event.payload_bytes ?? 0)) },
    !operator && h("p.soft", null, "Only an operator may look at payloads."),
    operator && !payloads && h("p.soft", null, "Payloads are shown to operators with a token: set admin.tokens."),
    payloads && !shown &&
      h(
        "div.payload-hidden",
        null,
        h("p.soft", null, state.payload?.failure ?? "Hidden. Looking at it may show personal data."),
        button("Show payload", { onclick: ask, disabled: Boolean(state.payload?.asked) }),
      ),
    payloads && shown && [
      h("pre.payload", { tabindex: "0", "aria-label": "Payload" }, pretty(state.payload)),
      h(
        "div.actions",
        null,
        h(
          "span.soft.grow",
          null,
          `${state.payload.content_type ?? ""} ${
            state.payload.encoding === "base64" ? "(bytes, as base64)" : ""
          }`,
        ),
        button("Hide", { onclick: hide }),
      ),
    ],
  );
}

// For reading only; the bytes that are delivered are not touched.
function pretty({ payload, encoding }) {
  if (encoding !== "utf8") return payload;
  try {
    return JSON.stringify(JSON.parse(payload), null, 2);
  } catch {
    return payload;
  }
}
