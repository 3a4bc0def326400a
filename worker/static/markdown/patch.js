// A drawn node becomes another one with as few changes as that takes: what stays equal is not touched, so that a selection
// in it survives and the browser lays out only what is new.

/** Make `old` look like `fresh`; returns the node that stands there now. */
export function patch(old, fresh) {
  if (old.isEqualNode(fresh)) return old;
  if (!isAlike(old, fresh)) {
    old.replaceWith(fresh);
    return fresh;
  }
  if (old.nodeType === Node.TEXT_NODE) patchText(old, fresh.data);
  else {
    patchAttributes(old, fresh);
    patchChildren(old, [...old.childNodes], [...fresh.childNodes]);
  }
  return old;
}

/** The same for all children `old` of a node, which need not be its only ones; returns those that stand there now. */
export function patchChildren(node, old, fresh) {
  for (const gone of old.slice(fresh.length)) gone.remove();
  return fresh.map((child, i) => (i < old.length ? patch(old[i], child) : node.appendChild(child)));
}

/** A button is never made into another: it would keep the first one's listener. */
function isAlike(old, fresh) {
  return old.nodeName === fresh.nodeName && old.nodeName !== "BUTTON";
}

function patchText(node, data) {
  if (data.startsWith(node.data)) node.appendData(data.slice(node.length));
  else node.data = data;
}

function patchAttributes(node, fresh) {
  for (const name of node.getAttributeNames()) if (!fresh.hasAttribute(name)) node.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}
