// Where we are, kept behind the # of the address: #/OUTBOX/PAGE/ARGUMENT?name=value

/** The address as an object. */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [outbox, page, argument] = path.split("/").map(readable);
  return {
    outbox,
    page: page || "overview",
    argument,
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

// Somebody may have typed it: what cannot be decoded stands for itself.
function readable(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a page, for a link. */
export function address(outbox, page, argument, query) {
  const path = [outbox, page, argument].filter((part) => part !== undefined && part !== null);
  const given = Object.entries(query ?? {}).filter(([, value]) =>
    value !== undefined && value !== null && value !== ""
  );
  const tail = given.length ? `?${new URLSearchParams(given)}` : "";
  return `#/${path.map(encodeURIComponent).join("/")}${tail}`;
}

/** Goes there; with `replace` without a step in the history. */
export function go(target, { replace = false } = {}) {
  if (!replace) location.hash = target;
  else {
    history.replaceState(null, "", target);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}
