// The session of this browser.

import { request } from "./api.js";

/** End it, and show how to sign in again. */
export async function signOut() {
  await request("DELETE", "/v1/sessions/current");
  location.assign("/");
}
