// Vector stores and the files in them, as the worker keeps them.

import { json, request } from "../shared/api.js";

const FILES_PAGE = 100; // the most that one request may ask for; the newest are shown

const path = (id, rest = "") => `/v1/vector_stores/${encodeURIComponent(id)}${rest}`;

export async function listStores() {
  return (await json("GET", "/v1/vector_stores?limit=100")).data;
}

export function createStore(name) {
  return json("POST", "/v1/vector_stores", { body: { name } });
}

/** {data, has_more}, the newest first. */
export function listFiles(storeId) {
  return json("GET", path(storeId, `/files?limit=${FILES_PAGE}`));
}

export function addFile(storeId, fileId) {
  return json("POST", path(storeId, "/files"), { body: { file_id: fileId } });
}

/** From every store, for good. */
export async function deleteFile(fileId) {
  await request("DELETE", `/v1/files/${encodeURIComponent(fileId)}`);
}
