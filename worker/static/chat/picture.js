// A picture that somebody chose, as a file of a question.

const SIDE_PX_MAX = 1600; // encoders look at less
const BYTES_MAX = 600_000; // a smaller file is sent as it is
const QUALITY = 0.85;
const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/** {name, text}: the text is its data URL. A large picture is made smaller. Raises an Error for a file that is none. */
export async function pictureFile(file) {
  const name = file.name || "picture";
  try {
    const image = await createImageBitmap(file);
    const scale = Math.min(1, SIDE_PX_MAX / Math.max(image.width, image.height));
    const small = scale === 1 && file.size <= BYTES_MAX && KINDS.includes(file.type);
    return { name, text: await dataUrl(small ? file : await redrawn(image, scale)) };
  } catch {
    throw new Error(`“${name}” is no picture that this browser can read.`);
  }
}

function redrawn(image, scale) {
  const canvas = new OffscreenCanvas(Math.max(1, image.width * scale), Math.max(1, image.height * scale));
  const pen = canvas.getContext("2d");
  pen.fillStyle = "white"; // under what is transparent
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: QUALITY });
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
