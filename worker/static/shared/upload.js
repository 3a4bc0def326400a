// Sending a file, with its progress: fetch tells none.

import { ApiError } from "./api.js";

/** The file object that the worker made of it. `progress(share)` goes from 0 to 1. Raises ApiError. */
export function upload(file, { progress, signal }) {
  const form = new FormData();
  form.append("purpose", "assistants");
  form.append("file", file);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", "/v1/files");
    request.responseType = "json";
    request.upload.addEventListener("progress", ({ loaded, total }) => progress(total > 0 ? loaded / total : 0));
    request.addEventListener("error", () => reject(new ApiError(0, "The connection was lost while the file was sent.")));
    request.addEventListener("abort", () => reject(new DOMException("Cancelled", "AbortError")));
    request.addEventListener("load", () => {
      const { status, response } = request;
      if (status === 200) return resolve(response);
      reject(new ApiError(status, response?.error?.message ?? `The worker answered with status ${status}.`));
    });
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(form);
  });
}
