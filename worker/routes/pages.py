"""The pages for people: chat at `/`, latency at `/ops`, sign-in when nobody is signed in, and their files.

The pages hold no inline script or style and never turn a string into markup; the content security policy makes the
browser enforce both, so text of a model or a document cannot become code even if the page had a bug.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from aiohttp import web

from worker.routes.assets import Asset, Assets
from worker.services import PRINCIPAL

STATIC = Path(__file__).parent.parent / "static"
# Stricter than what the worker sends with everything else: here the browser also refuses strings as markup.
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
FOREVER = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"
NEVER = "no-store"


# Which folders of modules a page imports from: told in its headers, all are fetched at once instead of one import
# after another, each a round trip deeper.
MODULES = {"index.html": ("chat", "markdown", "shared"), "ops.html": ("ops", "shared")}


class Pages:
    def __init__(self, assets: Assets) -> None:
        self._assets = assets
        self._preloads = {page: _preload(assets.addresses(*folders)) for page, folders in MODULES.items()}

    async def chat(self, request: web.Request) -> web.Response:
        return self._page(request, "index.html")

    async def ops(self, request: web.Request) -> web.Response:
        return self._page(request, "ops.html")

    async def file(self, request: web.Request) -> web.Response:
        """A file by its versioned address; another release's address still finds today's file, uncached."""
        asset = self._assets.files.get(request.match_info["path"])
        if asset is None:
            raise web.HTTPNotFound
        current = request.match_info["version"] == self._assets.version
        return _answer(request, asset, FOREVER if current else REVALIDATE)

    def _page(self, request: web.Request, name: str) -> web.Response:
        if request.get(PRINCIPAL) is None:
            return _answer(request, self._assets.files["sign-in.html"], NEVER, status=401)
        response = _answer(request, self._assets.files[name], REVALIDATE)
        response.headers["Link"] = self._preloads[name]
        return response


def _preload(addresses: Iterable[str]) -> str:
    return ", ".join(f"<{address}>; rel=modulepreload" for address in addresses)


def _answer(request: web.Request, asset: Asset, caching: str, *, status: int = 200) -> web.Response:
    headers = {
        "Content-Security-Policy": POLICY,
        "Cache-Control": caching,
        "ETag": f'"{asset.etag}"',
        "Vary": "Accept-Encoding, Cookie",
    }
    known = {tag.value for tag in request.if_none_match or ()}
    if status == 200 and asset.etag in known:
        return web.Response(status=304, headers=headers)
    body = asset.body
    if asset.compressed is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
        body = asset.compressed
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, status=status, content_type=asset.media_type, charset="utf-8", headers=headers)


def routes() -> list[web.RouteDef]:
    pages = Pages(Assets.read(STATIC))
    return [
        web.get("/", pages.chat),
        web.get("/ops", pages.ops),
        web.get("/static/{version}/{path:.+}", pages.file),
    ]
