// Where somebody was when they had to sign in: this tab comes back there, whichever way they take.

const NAME = "firsttoken.place";
const WORDS = new Set(["#link", "#refused"]); // of the page that says how to sign in: no places

export function notePlace() {
  if (WORDS.has(location.hash)) return;
  try {
    sessionStorage.setItem(NAME, location.pathname + location.hash);
  } catch {
    // storage is forbidden: they begin at the chat
  }
}

/** Once, and only for who arrives at the beginning of the chat: that is where each way leads. */
export function comeBack() {
  const place = taken();
  if (place === null || location.hash !== "") return;
  if (place.startsWith("/#")) history.replaceState(null, "", place);
  else if (place !== "/") location.replace(place);
}

function taken() {
  try {
    const place = sessionStorage.getItem(NAME);
    sessionStorage.removeItem(NAME);
    return place;
  } catch {
    return null;
  }
}
