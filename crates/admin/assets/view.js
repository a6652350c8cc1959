// The page as data: `h` describes an element, `mount` changes only what differs from the last description.
// So what polls every two seconds keeps its focus, its scroll position and what was typed.

const SVG = "http://www.w3.org/2000/svg";
// Set as properties, and only when the description changes: what somebody types is theirs.
const PROPERTIES = new Set(["value", "checked", "disabled", "selected"]);

/** `h("a.link", { href }, "text")`: tag and classes, attributes and listeners, children. */
export function h(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const given = props ?? {};
  const all = classes.length === 0
    ? given
    : { ...given, class: [...classes, given.class].filter(Boolean).join(" ") };
  return { tag: tag || "div", key: all.key, props: all, children: children.flat(Infinity).map(described) };
}

// Absent children keep their place, or the ones after them would be taken for each other.
function described(child) {
  if (child === null || child === undefined || child === false) {
    return { tag: "#none", props: {}, children: [] };
  }
  if (typeof child === "object") return child;
  return { tag: "#text", text: String(child), props: {}, children: [] };
}

/** Gives a function that draws descriptions into an element. */
export function mount(parent) {
  let drawn = [];
  parent.replaceChildren();
  return (...children) => {
    const next = children.flat(Infinity).map(described);
    reconcile(parent, drawn, next, false);
    drawn = next;
  };
}

function reconcile(parent, before, after, svg) {
  const keyed = new Map(before.filter((old) => old.key !== undefined).map((old) => [old.key, old]));
  const unkeyed = before.filter((old) => old.key === undefined);
  const kept = new Set();
  let position = 0;
  for (const node of after) {
    const old = node.key === undefined ? unkeyed[position++] : keyed.get(node.key);
    if (old && old.tag === node.tag && !kept.has(old)) {
      kept.add(old);
      node.dom = old.dom;
      update(old, node, svg);
    } else {
      create(node, svg);
    }
  }
  for (const old of before) if (!kept.has(old)) old.dom.remove();
  after.forEach((node, index) => {
    const there = parent.childNodes[index];
    if (there !== node.dom) parent.insertBefore(node.dom, there ?? null);
  });
}

function create(node, svg) {
  if (node.tag === "#none") node.dom = document.createComment("");
  else if (node.tag === "#text") node.dom = document.createTextNode(node.text);
  else {
    const inside = svg || node.tag === "svg";
    node.dom = inside ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
    reconcile(node.dom, [], node.children, inside);
    apply(node.dom, {}, node.props);
    node.props.ref?.(node.dom);
  }
}

function update(old, node, svg) {
  if (node.tag === "#text") {
    if (old.text !== node.text) node.dom.data = node.text;
  } else if (node.tag !== "#none") {
    reconcile(node.dom, old.children, node.children, svg || node.tag === "svg");
    apply(node.dom, old.props, node.props);
  }
}

function apply(dom, before, after) {
  for (const name of Object.keys(before)) if (!(name in after)) set(dom, name, undefined);
  for (const [name, value] of Object.entries(after)) if (before[name] !== value) set(dom, name, value);
}

function set(dom, name, value) {
  if (name === "key" || name === "ref") return;
  if (name.startsWith("on")) dom[name] = value ?? null;
  // Single properties are allowed by the content security policy; a style attribute is not.
  else if (name === "vars") {
    for (const [key, part] of Object.entries(value ?? {})) dom.style.setProperty(key, part);
  } else if (PROPERTIES.has(name)) dom[name] = value ?? "";
  else if (value === undefined || value === null || value === false) dom.removeAttribute(name);
  else dom.setAttribute(name, value === true ? "" : value);
}
