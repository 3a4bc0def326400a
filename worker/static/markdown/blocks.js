// Markdown text -> blocks, pure. Each block knows where it starts, so that a stream can keep what is settled.
//
// The law that streaming rests on: parsing from the start of any block gives that block and those after it exactly as
// parsing the whole text does. So no block may depend on anything before its first line.

const DEPTH_MAX = 6; // quotes and lists nested deeper than this read as plain paragraphs
const COLUMNS_MAX = 40; // nobody reads a table wider than this

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+)(?=\S)/;
const BLANK = /^[ \t]*$/;

/** [{type, from, …}]: heading {level, text}, code {language, text, closed}, rule, quote {blocks},
 *  list {ordered, start, tight, items: [blocks]}, table {align, head, rows}, paragraph {text}. */
export function parseBlocks(source, depth = 0) {
  const lines = source.split("\n");
  const blocks = [];
  let from = 0;
  for (let i = 0; i < lines.length; ) {
    let next = i + 1;
    if (!BLANK.test(lines[i])) {
      const [block, end] = blockAt(lines, i, depth);
      next = end;
      blocks.push({ ...block, from });
    }
    from += length(lines, i, next);
    i = next;
  }
  return blocks;
}

function length(lines, start, end) {
  let sum = 0;
  for (let i = start; i < end; i++) sum += lines[i].length + 1;
  return sum;
}

function blockAt(lines, i, depth) {
  return (
    code(lines, i) ?? heading(lines, i) ?? rule(lines, i) ??
    (depth < DEPTH_MAX ? (quote(lines, i, depth) ?? list(lines, i, depth)) : null) ??
    table(lines, i) ?? paragraph(lines, i, depth)
  );
}

function code(lines, i) {
  const open = FENCE.exec(lines[i]);
  if (open === null) return null;
  const [, fence, info] = open;
  let end = i + 1;
  while (end < lines.length && !closes(lines[end], fence)) end++;
  const block = { type: "code", language: info.trim().split(/\s/)[0], text: lines.slice(i + 1, end).join("\n") };
  return [{ ...block, closed: end < lines.length }, Math.min(end + 1, lines.length)];
}

function closes(line, fence) {
  const text = line.trim();
  return text.length >= fence.length && text === fence[0].repeat(text.length);
}

function heading(lines, i) {
  const match = HEADING.exec(lines[i]);
  return match && [{ type: "heading", level: match[1].length, text: match[2] }, i + 1];
}

function rule(lines, i) {
  return RULE.test(lines[i]) ? [{ type: "rule" }, i + 1] : null;
}

function quote(lines, i, depth) {
  let end = i;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  if (end === i) return null;
  const inner = lines.slice(i, end).map((line) => line.replace(QUOTE, ""));
  return [{ type: "quote", blocks: parseBlocks(inner.join("\n"), depth + 1) }, end];
}

function list(lines, i, depth) {
  const first = ITEM.exec(lines[i]);
  if (first === null) return null;
  const ordered = /\d/.test(first[2]);
  const mark = first[2].at(-1);
  const items = [];
  let tight = true;
  let end = i;
  for (let match = first; match !== null && match[2].at(-1) === mark; ) {
    const [inner, next, loose] = item(lines, end, match);
    items.push(parseBlocks(inner.join("\n"), depth + 1));
    tight &&= !loose;
    end = next;
    const following = skipBlank(lines, end);
    match = following < lines.length ? ITEM.exec(lines[following]) : null;
    if (match !== null && RULE.test(lines[following])) match = null;
    if (match !== null && match[2].at(-1) === mark) {
      tight &&= following === end;
      end = following;
    }
  }
  return [{ type: "list", ordered, start: ordered ? parseInt(first[2], 10) : null, tight, items }, end];
}

/** The lines of one item without their indent, the line after it, and whether a blank line splits it. */
function item(lines, i, match) {
  const indent = match[1].length + match[2].length + Math.min(match[3].length, 4);
  const inner = [lines[i].slice(match[0].length)];
  let loose = false;
  let end = i + 1;
  while (end < lines.length) {
    const text = skipBlank(lines, end);
    if (text >= lines.length) break;
    const indented = lines[text].search(/\S/) >= Math.min(indent, 2);
    if (text > end ? !indented : !indented && startsBlock(lines, text)) break;
    loose ||= text > end;
    for (; end < text; end++) inner.push("");
    inner.push(lines[end++].replace(new RegExp(`^ {0,${indent}}`), ""));
  }
  return [inner, end, loose];
}

function skipBlank(lines, i) {
  while (i < lines.length && BLANK.test(lines[i])) i++;
  return i;
}

function startsBlock(lines, i) {
  const line = lines[i];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line) ||
    table(lines, i) !== null;
}

function table(lines, i) {
  if (i + 1 >= lines.length || !lines[i].includes("|") || !lines[i + 1].includes("-")) return null;
  const head = cells(lines[i]);
  const align = cells(lines[i + 1]).map(alignment);
  if (head.length !== align.length || head.length > COLUMNS_MAX || align.includes(null)) return null;
  let end = i + 2;
  const rows = [];
  while (end < lines.length && lines[end].includes("|") && !BLANK.test(lines[end])) {
    const row = cells(lines[end++]);
    rows.push(head.map((_, column) => row[column] ?? ""));
  }
  return [{ type: "table", align, head, rows }, end];
}

function cells(line) {
  const text = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return text.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function alignment(cell) {
  if (!/^:?-+:?$/.test(cell)) return null;
  if (!cell.endsWith(":")) return "left";
  return cell.startsWith(":") ? "center" : "right";
}

function paragraph(lines, i, depth) {
  let end = i + 1;
  const breaks = depth < DEPTH_MAX ? startsBlock : () => false;
  while (end < lines.length && !BLANK.test(lines[end]) && !breaks(lines, end)) end++;
  return [{ type: "paragraph", text: lines.slice(i, end).join("\n").trim() }, end];
}
