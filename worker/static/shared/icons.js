// Line icons on a 24-pixel grid, built as nodes.

const SVG = "http://www.w3.org/2000/svg";

const PATHS = {
  plus: ["M12 5v14", "M5 12h14"],
  menu: ["M4 7h16", "M4 12h16", "M4 17h10"],
  send: ["M12 19V5", "M6 11l6-6 6 6"],
  stop: ["M8 8h8v8H8z"],
  copy: ["M9 9h10v10H9z", "M15 9V5H5v10h4"],
  check: ["M5 12.5l4.5 4.5L19 7.5"],
  close: ["M6 6l12 12", "M18 6L6 18"],
  chevron: ["M9 6l6 6-6 6"],
  down: ["M12 5v14", "M6 13l6 6 6-6"],
  pencil: ["M4 20l1-4L16 5l3 3L8 19z", "M14 7l3 3"],
  trash: ["M5 7h14", "M10 7V4.5h4V7", "M7 7l1 13h8l1-13", "M10.5 11v5", "M13.5 11v5"],
  book: ["M5 4.5h11a2 2 0 0 1 2 2v13H7a2 2 0 0 1-2-2z", "M5 17.5a2 2 0 0 1 2-2h11", "M9 8.5h5"],
  tool: ["M14.5 6.5a4 4 0 0 0-5.2 5.2L4 17l3 3 5.3-5.3a4 4 0 0 0 5.2-5.2L15 12l-3-3z"],
  sun: ["M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8z", "M12 2.5v2", "M12 19.5v2", "M2.5 12h2", "M19.5 12h2",
    "M5.3 5.3l1.4 1.4", "M17.3 17.3l1.4 1.4", "M5.3 18.7l1.4-1.4", "M17.3 6.7l1.4-1.4"],
  moon: ["M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5z"],
  gauge: ["M4.5 18a9 9 0 1 1 15 0", "M12 14l4-5"],
  warning: ["M12 4l9 16H3z", "M12 10v4.5", "M12 17v.5"],
  retry: ["M5 12a7 7 0 1 1 2.2 5.1", "M5 19v-4.5h4.5"],
  leave: ["M10 5H5v14h5", "M9 12h11", "M16 8l4 4-4 4"],
  more: ["M5.5 11.4a.6.6 0 1 0 0 1.2.6.6 0 0 0 0-1.2z", "M12 11.4a.6.6 0 1 0 0 1.2.6.6 0 0 0 0-1.2z",
    "M18.5 11.4a.6.6 0 1 0 0 1.2.6.6 0 0 0 0-1.2z"],
  pin: ["M9 4h6l-1 6 3 3H7l3-3z", "M12 13v7"],
  share: ["M12 15V4", "M8 8l4-4 4 4", "M5 13v6h14v-6"],
  download: ["M12 4v11", "M8 11l4 4 4-4", "M5 19h14"],
  bubble: ["M5 5h14v11h-8l-4 4v-4H5z"],
  search: ["M11 5a6 6 0 1 0 0 12 6 6 0 0 0 0-12z", "M15.5 15.5L20 20"],
  upload: ["M12 15V5", "M8 9l4-4 4 4", "M5 19h14"],
  picture: ["M4 5h16v14H4z", "M4 16l5-5 4 4 3-3 4 4", "M8.5 8a1 1 0 1 0 0 2 1 1 0 0 0 0-2z"],
  file: ["M7 3.5h7l4 4v13H7z", "M14 3.5v4h4"],
  sliders: ["M4 8h9", "M17 8h3", "M15 6v4", "M4 16h3", "M11 16h9", "M9 14v4"],
  "thumb-up": ["M7 11v8H4v-8z", "M7 11l4-7a2 2 0 0 1 2 2v4h5.5a1.5 1.5 0 0 1 1.5 1.8l-1.2 6a1.5 1.5 0 0 1-1.5 1.2H7"],
  "thumb-down": ["M17 13V5h3v8z", "M17 13l-4 7a2 2 0 0 1-2-2v-4H5.5A1.5 1.5 0 0 1 4 12.200l1.2-6A1.5 1.5 0 0 1 6.700 5H17"],
  text: ["M5 7h14", "M5 12h14", "M5 17h9"],
  code: ["M8.5 7L4 12l4.5 5", "M15.5 7L20 12l-4.5 5"],
  screen: ["M4 5h16v11H4z", "M9 20h6", "M12 16v4"],
  person: ["M12 4.500a3.500 3.500 0 1 0 0 7 3.500 3.500 0 0 0 0-7z", "M5 20a7 7 0 0 1 14 0"],
  external: ["M10 5H5v14h14v-5", "M14 4h6v6", "M20 4l-9 9"],
};

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const attributes = {
    class: "icon", viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": "1.75",
    "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true",
  };
  for (const [key, value] of Object.entries(attributes)) svg.setAttribute(key, value);
  for (const d of PATHS[name]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}
