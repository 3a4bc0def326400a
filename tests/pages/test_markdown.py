"""The renderer, fed directly in a page: what it draws, and what can never come out of it."""

from __future__ import annotations

import random
import time

import pytest
from playwright.async_api import Page

from tests.pages.conftest import OpenPage
from tests.pages.scripted import ScriptedWorker

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
MARKUP = "(node) => { node.remove(); return node.innerHTML; }"
# What an answer must never hold: other elements, handlers, addresses that are not http(s).
FORBIDDEN = """(node) => {
  const allowed = new Set(["p", "h3", "h4", "h5", "h6", "br", "hr", "em", "strong", "del", "code", "pre", "a", "span",
    "ul", "ol", "li", "blockquote", "div", "table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption",
    "button", "svg", "path"]);
  const attributes = new Set(["class", "href", "target", "rel", "start", "data-align", "tabindex", "role",
    "aria-label", "aria-hidden", "type", "viewBox", "fill", "stroke", "stroke-width", "stroke-linecap",
    "stroke-linejoin", "d"]);
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
UNITS = ["*", "**a", "_a *b ", "`", "[", "[a](", "![](", "<http://a", "> ", "- ", "- a\n", "|", "1. a\n   - b\n"]


@pytest.fixture
async def page(open_page: OpenPage, scripted: ScriptedWorker) -> Page:
    return await open_page(scripted.url)


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
    assert await draw(page, "a [1] b [9]") == "<p>a&nbsp;<button>1</button> b&nbsp;[9]</p>"


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


async def test_a_hostile_answer_costs_no_more_than_a_moment(page: Page) -> None:
    for unit in UNITS:
        text = unit * (100_000 // len(unit))
        started = time.perf_counter()
        await draw(page, text)
        assert time.perf_counter() - started < 5, unit  # these take some 0.2 s; quadratic work took 12 s
