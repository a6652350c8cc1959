// Asks for a token when the API does not answer without one.

import { icon } from "./parts.js";
import { h } from "./view.js";

export const login = ({ wrong, enter }) =>
  h(
    "main.login",
    null,
    h("img", { src: "assets/mark.svg", alt: "", width: "56", height: "56" }),
    h("h1", null, "Posthaste"),
    h(
      "form.card",
      {
        onsubmit: (event) => {
          event.preventDefault();
          const given = new FormData(event.target).get("token").trim();
          if (given) enter(given);
        },
      },
      h("label", { for: "token" }, "Access token"),
      h("input", {
        id: "token",
        name: "token",
        type: "password",
        autocomplete: "off",
        required: true,
        "aria-describedby": "token-note",
      }),
      wrong && h("p.bad", { role: "alert" }, icon("warning"), "This token is not known."),
      h("p.soft", { id: "token-note" }, "It is kept in this tab only and is forgotten when the tab closes."),
      h("button.button.primary", { type: "submit" }, "Continue"),
    ),
  );
