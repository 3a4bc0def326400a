"""The renderer, fed directly in a page: what it draws, and what can never come out of it."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from playwright.async_api import Page

from tests.pages.conftest import OpenPage, Windows
from tests.pages.scripted import ScriptedWorker, hello, serving

# Writes `text` in the given pieces into a fresh node, and returns its markup as the browser sees it.
DRAW = """
async ({ pieces, sources }) => {
  const base = document.querySelector('script[type="module"]').src.replace("/chat/main.js", "");
  const { MarkdownStream } = await import(`${base}/markdown/stream.js`);
  const node = document.createElement("div");
  document.body.append(node);
  const cite = (n) => sources.includes(n) ? Object.assign(document.createElement("button"), { textContent: n }) : null;
  const stream = new MarkdownStream(node, { cite });
  for (const piece of pieces) { stream.append(piece); stream.draw(false); }
  stream.finish();
  return inspect(node);
}
"""
MARKUP = """(node) => {
  node.remove();
  return node.innerHTML.replaceAll(' dir="auto"', "");
}"""
# What an answer must never hold: other elements, handlers, addresses that are not http(s).
FORBIDDEN = """(node) => {
  const allowed = new Set(["p", "h3", "h4", "h5", "h6", "br", "hr", "em", "strong", "del", "code", "pre", "a", "span",
    "ul", "ol", "li", "blockquote", "div", "table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption",
    "button", "svg", "path"]);
  const attributes = new Set(["class", "href", "target", "rel", "start", "dir", "data-align", "data-language",
    "tabindex", "role", "aria-label", "aria-hidden", "type", "viewBox", "fill", "stroke", "stroke-width",
    "stroke-linecap", "stroke-linejoin", "d"]);
  return [...node.querySelectorAll("*")].flatMap((element) => [
    ...(allowed.has(element.localName) ? [] : [element.localName]),
    ...element.getAttributeNames().filter((name) => !attributes.has(name)),
    ...(element.localName !== "a" || /^https?:$/.test(element.protocol) ? [] : [element.href]),
  ]);
}"""

TOUR = """# Title
First *line* with `code`
***second*** line

- one
- two
  - inner **bold**

    more of inner
1. first
2. second

| a | b |
|---|--:|
| 1 | `x|y` |

> quoted
> - list

```python
print("**not bold**")
```
---
see [1], [9] and [docs](https://example.org/a_(b)) or <https://example.org>, https://example.org/x.
"""

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "[click](JaVaScRiPt:alert(1))",
    "[click](data:text/html,<script>alert(1)</script>)",
    "[click](vbscript:x) [click](file:///etc/passwd) [click](blob:x)",
    "![img](javascript:alert(1)) ![track](https://evil.example/pixel.png)",
    '[x](https://example.org/"onmouseover="alert(1))',
    "<a href='javascript:alert(1)'>x</a><svg/onload=alert(1)>",
    "<https://example.org/'onclick='alert(1)>",
    "```html\n<script>alert(1)</script>\n```",
    "```<img src=x onerror=alert(1)>\ncode\n```",
    "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| <iframe src=javascript:alert(1)> | d |",
    "# <style>*{display:none}</style>",
    "> " * 200 + "<script>alert(1)</script>",
    "[1](javascript:alert(1))",
    "**" * 500 + "<b onclick=alert(1)>",
]

# Repeated, each of these has made some Markdown parser slow.
UNITS = [
    *("*", "**a", "_a *b ", "`", "[", "[a](", "![](", "<http://a", "> ", "- ", "- a\n", "|", "1. a\n   - b\n"),
    *(
        "[a](http://a.b/c) ",
        "[a](b",
        "![a](b) ",
        "http://a.b/",
        "https://a(",
        "[1]",
        "[**a**](http://a.b)",
        "http://" + "." * 2_000,
        "\\(",
        "\\[a",
        "$a",
        "~~a",
        "\\",
        "$a$\n\n",
        "```js\n" + "`${" * 50 + "\n```\n",
    ),
]


FORMULAS = [r"\(\frac{a_1}{b_1}\)", r"\[\sum_{i=1}^n *i* \\ x\]", r"$$\alpha * \beta$$", r"$x_1 + y_1$"]


# What KaTeX has made of the formula of a text, once it is there.
TYPESET = """
async (text) => {
  const base = document.querySelector('script[type="module"]').src.replace("/chat/main.js", "");
  const { MarkdownStream } = await import(`${base}/markdown/stream.js`);
  const node = document.createElement("div");
  document.body.append(node);
  const stream = new MarkdownStream(node, { cite: () => null });
  stream.append(text);
  stream.finish();
  while (!node.querySelector(".katex")) await new Promise(requestAnimationFrame);
  const glyph = node.querySelector(".katex-html .mord");
  while (!getComputedStyle(glyph).fontFamily.startsWith("KaTeX")) await new Promise(requestAnimationFrame);
  await document.fonts.ready;
  const loaded = [...document.fonts].some(({ family, status }) => family.startsWith("KaTeX") && status === "loaded");
  return { source: node.querySelector("annotation").textContent, font: getComputedStyle(glyph).fontFamily, loaded };
}
"""
MARKED = """
async ({ text, start, end }) => {
  const base = document.querySelector('script[type="module"]').src.replace("/chat/main.js", "");
  const { markedDocument } = await import(`${base}/markdown/document.js`);
  const { node, mark } = markedDocument(text, start, end);
  const words = [...node.querySelectorAll("mark")].map((each) => each.textContent).join("|");
  return { words, first: mark.nodeName, headings: node.querySelectorAll("h3").length };
}
"""
BROKEN = """
async (text) => {
  const base = document.querySelector('script[type="module"]').src.replace("/chat/main.js", "");
  const { MarkdownStream } = await import(`${base}/markdown/stream.js`);
  const node = document.createElement("div");
  node.className = "prose";
  document.body.append(node);
  const stream = new MarkdownStream(node, { cite: () => null });
  stream.append(text);
  stream.finish();
  const code = node.querySelector("code");
  const before = document.createRange();
  before.setStart(code.previousSibling, code.previousSibling.data.length - 1);
  before.setEnd(code.previousSibling, code.previousSibling.data.length);
  const broken = [];
  for (let width = 150; width < 400; width += 3) {
    node.style.width = `${width}px`;
    const [box, mark] = [code.getBoundingClientRect(), before.getBoundingClientRect()];
    const rows = code.getClientRects().length > 1 || box.height > 30;
    if (rows || mark.bottom < box.top + 2) broken.push(width);
  }
  node.remove();
  return broken;
}
"""
COLOURED = """
async (text) => {
  const base = document.querySelector('script[type="module"]').src.replace("/chat/main.js", "");
  const { MarkdownStream } = await import(`${base}/markdown/stream.js`);
  const node = document.createElement("div");
  document.body.append(node);
  const stream = new MarkdownStream(node, { cite: () => null });
  for (const letter of text) { stream.append(letter); stream.draw(false); }
  stream.finish();
  while (!node.querySelector("code span")) await new Promise(requestAnimationFrame);
  const classes = [...node.querySelectorAll("code span")].map((span) => span.className);
  return { text: node.querySelector("code").textContent, classes, markup: node.querySelectorAll("code b").length };
}
"""


@dataclass(frozen=True)
class Board:
    """One page for all that is drawn, each time into a node of its own."""

    page: Page
    complaints: list[str]


@pytest.fixture(scope="module")
async def board(windows: Windows) -> AsyncIterator[Board]:
    async with serving(ScriptedWorker(hello)) as worker:
        window = await windows.take({"viewport": {"width": 1280, "height": 720}})
        await window.page.goto(worker.url)
        yield Board(window.page, window.complaints)
        await window.page.context.close()


@pytest.fixture
async def page(board: Board) -> AsyncIterator[Page]:
    yield board.page
    assert board.complaints == []


async def draw(page: Page, *pieces: str, sources: tuple[int, ...] = (1,)) -> str:
    html = await page.evaluate(drawing(MARKUP), {"pieces": list(pieces), "sources": list(sources)})
    assert isinstance(html, str)
    return html


def drawing(inspect: str) -> str:
    return DRAW.replace("inspect(node)", f"({inspect})(node)")


async def test_markdown_becomes_elements(page: Page) -> None:
    html = await draw(page, TOUR)
    assert "<h3>Title</h3>" in html
    assert "<p>First <em>line</em> with <code>code</code><br><em><strong>second</strong></em> line</p>" in html
    assert "<li>first</li><li>second</li>" in html
    assert "<p>inner <strong>bold</strong></p><p>more of inner</p>" in html
    assert '<th data-align="right">b</th>' in html
    assert "<blockquote><p>quoted</p><ul><li>list</li></ul></blockquote>" in html
    assert 'print("**not bold**")' in html
    assert "<hr>" in html
    assert 'href="https://example.org/a_(b)"' in html
    assert 'href="https://example.org/x"' in html


async def test_a_citation_becomes_a_chip_only_when_there_is_such_a_source(page: Page) -> None:
    assert await draw(page, "a [1] b [9]") == '<p><span class="keep">a&nbsp;<button>1</button></span> b [9]</p>'


async def test_a_citation_stays_on_the_line_of_its_word_and_its_full_stop(page: Page) -> None:
    html = await draw(page, "It is so [1][2]. See *that* [1], too.", sources=(1, 2))
    kept = '<span class="keep">so&nbsp;<button>1</button><button>2</button>.</span>'
    assert kept in html
    assert '<em>that</em> <span class="keep"><button>1</button>,</span> too.' in html


@pytest.mark.parametrize("formula", FORMULAS)
async def test_a_formula_is_typeset_and_keeps_its_source_for_whoever_copies_it(page: Page, formula: str) -> None:
    typeset = await page.evaluate(TYPESET, f"So {formula} holds.")
    assert typeset["source"] in formula and len(formula) - len(typeset["source"]) <= 4
    assert typeset["font"].startswith("KaTeX") and typeset["loaded"]


@pytest.mark.parametrize("formula", [r"\(\frac{1}\)", r"$\unknown_x$", "$$a & b$$"])
async def test_a_formula_that_cannot_be_read_keeps_its_backslashes_and_marks(page: Page, formula: str) -> None:
    await page.evaluate(TYPESET, r"First \(x\).")  # KaTeX is there
    html = await draw(page, f"So {formula} holds.")
    assert re.sub(r"<[^>]*>", "", html).replace("&amp;", "&") == f"So {formula} holds."


async def test_a_page_without_formulas_and_code_fetches_neither_katex_nor_highlight(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    page = await open_page(scripted.url, own=True)
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    await draw(page, "It costs $5, and `code` is no block.")
    await page.wait_for_load_state("networkidle")
    assert [url for url in fetched if "/vendor/" in url] == []


async def test_closed_code_gets_colours_and_stays_the_same_text(page: Page) -> None:
    code = 'def f(x):\n    return "<b>" + x  # done\n'
    coloured = await page.evaluate(COLOURED, f"```python\n{code}```\n\nAnd on.")
    assert coloured["text"] == code.rstrip("\n")
    assert {"hl-keyword", "hl-title", "hl-string", "hl-comment"} <= set(coloured["classes"])
    assert coloured["markup"] == 0


async def test_code_in_a_language_that_is_not_known_stays_plain(page: Page) -> None:
    html = await draw(page, "```klingon\nlet x = 1\n```\n")
    assert "<code>let x = 1</code>" in html


async def test_a_cited_span_is_marked_in_the_formatted_document(page: Page) -> None:
    document = "# Title\n\nFirst *words* here. The **cited** sentence\nhas two lines. Last.\n\n"
    document += "| a | b |\n|---|---|\n| 1 | 2 |\n"
    start, end = document.index("The **"), document.index(" Last.")
    marked = await page.evaluate(MARKED, {"text": document, "start": start, "end": end})
    assert marked == {"words": "The |cited| sentence has two lines.", "first": "MARK", "headings": 1}
    table = await page.evaluate(MARKED, {"text": document, "start": document.index("| 1"), "end": len(document)})
    assert table["first"] in ("DIV", "MARK"), "a part that reads otherwise when it stands alone is marked as a whole"


async def test_the_name_of_an_option_is_not_broken_after_its_dashes(page: Page) -> None:
    assert await page.evaluate(BROKEN, "Traces are kept for seven days by default (`--trace-days`).") == []


@pytest.mark.parametrize("deep", ["\n".join("  " * n + "- word" for n in range(14)), "> " * 14 + "word"])
async def test_what_is_nested_deeper_than_a_phone_is_wide_stays_within_its_width(page: Page, deep: str) -> None:
    words_beyond = """(node) => {
      Object.assign(node, { className: "prose", style: "width: 280px" });
      const beyond = node.scrollWidth - 280;
      const words = [...node.querySelectorAll("li, p")].map((each) => each.getBoundingClientRect().width);
      node.remove();
      return [beyond, Math.min(...words) > 100];
    }"""
    assert await page.evaluate(drawing(words_beyond), {"pieces": [deep], "sources": []}) == [0, True]


async def test_prices_are_no_formula(page: Page) -> None:
    assert await draw(page, "It costs $5, not $6.") == "<p>It costs $5, not $6.</p>"


async def test_a_link_opens_beside_the_page_and_a_picture_is_only_a_link(page: Page) -> None:
    html = await draw(page, "[docs](https://a.example/x) ![a cat](https://b.example/cat.png)")
    attributes = 'target="_blank" rel="noopener noreferrer nofollow"'
    assert f'<a href="https://a.example/x" {attributes}>docs</a>' in html
    assert f'<a href="https://b.example/cat.png" {attributes}>a cat</a>' in html
    assert "<img" not in html


async def test_each_paragraph_has_the_direction_of_its_own_language(page: Page) -> None:
    direction = "(node) => [...node.children].map((block) => getComputedStyle(block).direction)"
    script = drawing(direction)
    found = await page.evaluate(script, {"pieces": ["שלום עולם\n\nHello\n\n- שלום\n"], "sources": []})
    assert found == ["rtl", "ltr", "rtl"]


async def test_the_columns_of_a_table_go_on_in_the_direction_of_its_language(page: Page) -> None:
    places = "(node) => [...node.querySelectorAll('th, td')].map((cell) => cell.getBoundingClientRect().left)"
    table = "| שם | value |\n|---|---|\n| א | Hello. |\n"
    for given, order in ((table, [1, 0]), (table.replace("שם", "name"), [0, 1])):
        found = await page.evaluate(drawing(places), {"pieces": [given], "sources": []})
        assert [found.index(left) for left in sorted(found[:2])] == order


async def test_the_words_of_a_column_begin_below_its_name(page: Page) -> None:
    begins = """(node) => {
      node.className = "prose";
      const rtl = getComputedStyle(node.firstChild).direction === "rtl";
      const found = [...node.querySelectorAll("th:last-child, td:last-child")].map((cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        const { left, right } = range.getBoundingClientRect();
        return Math.round(rtl ? right : left);
      });
      node.remove();
      return new Set(found).size;
    }"""
    for table in ("| a | b |\n|---|---|\n| 1 | wider than its name |\n", "| שם | מחיר כולל |\n|---|---|\n| א | 12 |\n"):
        assert await page.evaluate(drawing(begins), {"pieces": [table], "sources": []}) == 1


# How often anything changed inside of blocks that were closed, and inside of list items that were complete, while a
# long answer came in by small pieces.
CHANGES = """
async ({ text, size }) => {
  const base = document.querySelector('script[type="module"]').src.replace("/chat/main.js", "");
  const { MarkdownStream } = await import(`${base}/markdown/stream.js`);
  const node = document.createElement("div");
  document.body.append(node);
  const settled = new Set();
  const stream = new MarkdownStream(node, { cite: () => null, onSettled: (block) => settled.add(block) });
  const observer = new MutationObserver(() => {});
  observer.observe(node, { childList: true, subtree: true, characterData: true, attributes: true });
  let inClosed = 0, inItems = 0, added = 0;
  for (let at = 0; at < text.length; at += size) {
    const closed = [...settled], items = [...node.querySelectorAll("li")].slice(0, -2);
    stream.append(text.slice(at, at + size));
    stream.draw(false);
    for (const { target, addedNodes } of observer.takeRecords()) {
      inClosed += closed.some((block) => block.contains(target));
      inItems += items.some((item) => item.contains(target));
      added += addedNodes.length;
    }
  }
  stream.finish();
  const kept = [...settled].every((block) => block.parentNode === node);
  return { inClosed, inItems, kept, added, nodes: node.querySelectorAll("*").length };
}
"""


async def test_what_stands_is_not_drawn_again_while_the_answer_goes_on(page: Page) -> None:
    paragraphs = "".join(f"Paragraph {i} with **bold** and `code`.\n\n" for i in range(60))
    items = "".join(f"- item {i} with *words*\n" for i in range(60))
    text = f"{paragraphs}{items}\n\n```py\n" + "x = 1\n" * 60 + "```\n"
    changes = await page.evaluate(CHANGES, {"text": text, "size": 5})
    assert (changes["inClosed"], changes["inItems"], changes["kept"]) == (0, 0, True)
    assert changes["added"] < 4 * changes["nodes"], "each node is made once, and again only while its own marks close"


@pytest.mark.parametrize(
    ("label", "drawn"),
    [
        ("**bold** `code`", "<strong>bold</strong> <code>code</code>"),
        ("*a **b** c*", "<em>a <strong>b</strong> c</em>"),
        ("at http://c.d", "at http://c.d"),
        ("", ""),
    ],
)
async def test_what_is_in_the_label_of_a_link_does_not_move_its_end(page: Page, label: str, drawn: str) -> None:
    markup = await draw(page, f"see [{label}](http://a.b) and [{label}](http://c.d).")
    text = re.sub(r"</?a\b[^>]*>", "", markup)
    assert text == f"<p>see {drawn} and {drawn}.</p>" and markup.count("<a ") >= 2


async def test_punctuation_behind_an_address_belongs_to_the_sentence(page: Page) -> None:
    markup = await draw(page, "(see https://a.b/c_d), https://a.b/?x=1! and https://...")
    assert re.findall(r'href="([^"]*)"', markup) == ["https://a.b/c_d", "https://a.b/?x=1"]
    assert re.sub(r"</?a\b[^>]*>", "", markup) == "<p>(see https://a.b/c_d), https://a.b/?x=1! and https://...</p>"


async def test_a_stream_ends_as_the_whole_text_would_whatever_its_pieces(page: Page) -> None:
    whole = await draw(page, TOUR)
    for seed in range(40):
        chance = random.Random(seed)
        pieces, rest = [], TOUR
        while rest:
            size = chance.randint(1, chance.choice([2, 8, 60]))
            pieces.append(rest[:size])
            rest = rest[size:]
        assert await draw(page, *pieces) == whole, seed


async def test_a_mark_still_open_does_not_show_its_stars(page: Page) -> None:
    script = drawing(MARKUP).replace("stream.finish();", "")
    html = await page.evaluate(script, {"pieces": ["so **bo"], "sources": []})
    assert html == "<p>so <strong>bo</strong></p>"


async def test_a_hostile_answer_stays_text(page: Page) -> None:
    await page.evaluate("() => { window.alert = () => { window.wasAttacked = true; }; }")
    for text in HOSTILE:
        assert await page.evaluate(drawing(FORBIDDEN), {"pieces": list(text), "sources": [1]}) == [], text
    assert not await page.evaluate("() => window.wasAttacked === true")


@pytest.mark.parametrize(
    "formula",
    [
        r"\href{javascript:alert(1)}{x}",
        r"\url{javascript:alert(1)}",
        r"\includegraphics{https://evil.example/pixel.png}",
        r"\htmlClass{is-danger}{x}",
        r"\def\a{\a\a}\a",
        r"\rule{9999em}{9999em}",
        "{" * 900 + "x" + "}" * 900,
    ],
)
async def test_a_hostile_formula_makes_no_link_no_picture_and_no_curtain(page: Page, formula: str) -> None:
    await page.evaluate(TYPESET, r"First \(x\).")
    found = await page.evaluate(
        drawing("""(node) => ({
          links: node.querySelectorAll("a, img, .is-danger").length,
          width: node.scrollWidth - node.clientWidth,
          height: node.getBoundingClientRect().height,
        })"""),
        {"pieces": [f"$${formula}$$"], "sources": []},
    )
    assert found["links"] == 0 and found["width"] == 0 and found["height"] < 2_000


async def test_a_hostile_answer_costs_no_more_than_a_moment(page: Page) -> None:
    devtools = await page.context.new_cdp_session(page)
    await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def computed_s() -> float:
        """By the processor time of the page's thread, whoever else computes."""
        metrics = (await devtools.send("Performance.getMetrics"))["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == "ThreadTime")

    for unit in UNITS:
        text = unit * (40_000 // len(unit))
        began_s = await computed_s()
        await page.evaluate(drawing("(node) => node.remove()"), {"pieces": [text], "sources": [1]})
        assert await computed_s() - began_s < 1, unit  # these take some 0.1 s; quadratic work took 2 s


async def test_items_of_a_task_list_have_boxes(page: Page) -> None:
    drawn = await draw(page, "- [ ] todo\n- [x] **done**\n- a[ ] b\n")
    assert drawn == (
        '<ul><li class="task">☐ todo</li><li class="task">☑ <strong>done</strong></li><li>a[ ] b</li></ul>'
    )
