// The sessions of a person: this browser, and the others that are signed in.

import { json, request } from "./api.js";
import { forgetAllBut } from "./preferences.js";

const SHOWN_MAX = 100; // the most that one request may ask for; newest first

/** End this one, and show how to sign in again. */
export async function signOut() {
  await request("DELETE", "/v1/sessions/current");
  leave();
}

/** End all of them, this one too. */
export async function signOutEverywhere() {
  await request("DELETE", "/v1/sessions");
  leave();
}

/** Whoever signs in here next may be somebody else: what this person wrote and did not send is gone. */
function leave() {
  forgetAllBut(["theme"]);
  location.assign("/");
}

export async function listSessions() {
  return (await json("GET", `/v1/sessions?limit=${SHOWN_MAX}`)).data;
}

export async function endSession(id) {
  await request("DELETE", `/v1/sessions/${encodeURIComponent(id)}`);
}

const BROWSERS = [["Edg/", "Edge"], ["OPR/", "Opera"], ["Firefox/", "Firefox"], ["Chrome/", "Chrome"], ["Safari/", "Safari"]];
const SYSTEMS = [
  ["Android", "Android"], ["iPhone", "iPhone"], ["iPad", "iPad"], ["Windows", "Windows"], ["Mac OS X", "macOS"], ["CrOS", "ChromeOS"], ["Linux", "Linux"],
];

/** "Firefox on Linux", as far as what a browser calls itself tells. */
export function browserName(agent) {
  const named = (list) => list.find(([mark]) => (agent ?? "").includes(mark))?.[1];
  const [browser, system] = [named(BROWSERS), named(SYSTEMS)];
  if (browser === undefined) return system ?? "Unknown browser";
  return system === undefined ? browser : `${browser} on ${system}`;
}
