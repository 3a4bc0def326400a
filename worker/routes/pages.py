"""The pages: chat at `/`, latency at `/ops`, sign-in for users who are not signed in, a conversation that somebody has
shared at `/shared`, and their static files.

Every file is addressed as /static/<version>/<path>, where the version is a hash over all files: the content of such an
address never changes, so browsers keep it, and modules that import each other by relative paths stay one release.

The pages contain no inline script or style and never turn a string into markup. The content security policy makes the
browser enforce both, so text of a model or a document cannot become code even if the page has a bug.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from aiohttp import web

from worker.http.request import BYTES, EVERYBODY, HTML, PRINCIPAL, VISITORS, Routes
from worker.services import SERVICES

STATIC = Path(__file__).parent.parent / "static"
# Stricter than what the worker sends with everything else: here the browser also refuses strings as markup. Pictures of
# questions are data URLs.
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
FOREVER = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"
NEVER = "no-store"
MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
FILE = "/static/{version}/{path:.+}"
COMPRESS_BYTES_MIN = 512  # below this the gzip header costs more than it saves
VERSION_DIGITS = 16

# What a page imports modules from, folders and files: named in its headers, so that the browser fetches all modules at
# once instead of one import after another, each a round trip later.
MODULES = {
    "index.html": ("chat/", "documents/", "markdown/", "shared/", "vendor/markdown-it.js"),
    "ops.html": ("ops/", "shared/", "vendor/uplot.js"),
    "visitor.html": ("visitor/", "markdown/", "shared/", "vendor/markdown-it.js"),
}


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    compressed: bytes | None
    media_type: str

    @property
    def etag(self) -> str:
        return hashlib.sha256(self.body).hexdigest()[:VERSION_DIGITS]

    @classmethod
    def of(cls, path: str, body: bytes) -> Asset:
        """Raises KeyError for a kind of file that the pages do not use."""
        media_type = MEDIA_TYPES[PurePosixPath(path).suffix]
        smaller = len(body) >= COMPRESS_BYTES_MIN and not media_type.startswith("font/")  # which are compressed already
        return cls(body, gzip.compress(body, mtime=0) if smaller else None, media_type)


@dataclass(frozen=True, slots=True)
class Assets:
    """Files by their path below static/, with "/" between the parts."""

    files: Mapping[str, Asset]
    version: str

    @classmethod
    def read(cls, folder: Path) -> Assets:
        """Load every file below `folder`; HTML gets its /static/ addresses pinned to this version."""
        bodies = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.suffix in MEDIA_TYPES
        }
        version = _version(bodies)
        pinned = f"/static/{version}/".encode()
        files = {
            path: Asset.of(path, body.replace(b"/static/", pinned) if path.endswith(".html") else body)
            for path, body in bodies.items()
        }
        return cls(files, version)

    def addresses(self, *places: str) -> list[str]:
        """The versioned addresses of the scripts in these folders, or with these names."""
        return [f"/static/{self.version}/{path}" for path in self.files if path.startswith(places)]


def _version(bodies: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, body in bodies.items():
        digest.update(f"{path}\0{len(body)}\0".encode())
        digest.update(body)
    return digest.hexdigest()[:VERSION_DIGITS]


# Compressing them takes a fifth of a second, and a process may have several applications.
ASSETS = Assets.read(STATIC)
SIGN_IN = ASSETS.files["sign-in.html"]
# With the way to the organisation's provider.
SIGN_IN_ORGANISED = Asset.of(
    "sign-in.html", SIGN_IN.body.replace(b'class="sign-in"', b'class="sign-in has-organisation"')
)
LINKS = {
    page: ", ".join(f"<{address}>; rel=modulepreload" for address in ASSETS.addresses(*places))
    for page, places in MODULES.items()
}
routes, static_routes = Routes(), Routes()


@routes.get("/", VISITORS, tells=(HTML,))
async def chat(request: web.Request) -> web.Response:
    return _page(request, "index.html")


@routes.get("/ops", VISITORS, tells=(HTML,))
async def ops(request: web.Request) -> web.Response:
    return _page(request, "ops.html")


@routes.get("/shared", EVERYBODY, tells=(HTML,))
async def visitor(request: web.Request) -> web.Response:
    """For whoever has a link: the page asks for what it shows."""
    return _open(request, "visitor.html")


@routes.get(FILE, EVERYBODY, tells=(BYTES,))
@static_routes.get(FILE, EVERYBODY, tells=(BYTES,))
async def file(request: web.Request) -> web.Response:
    """A file by its versioned address; another release's address still finds today's file, uncached."""
    asset = ASSETS.files.get(request.match_info["path"])
    if asset is None:
        raise web.HTTPNotFound
    current = request.match_info["version"] == ASSETS.version
    return _answer(request, asset, FOREVER if current else REVALIDATE)


def _page(request: web.Request, name: str) -> web.Response:
    if request.get(PRINCIPAL) is not None:
        return _open(request, name)
    services = request.app.get(SERVICES)
    organised = services is not None and services.authenticator.provider is not None
    return _answer(request, SIGN_IN_ORGANISED if organised else SIGN_IN, NEVER, status=401)


def _open(request: web.Request, name: str) -> web.Response:
    response = _answer(request, ASSETS.files[name], REVALIDATE)
    response.headers["Link"] = LINKS[name]
    return response


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


def loading_page(request: web.Request, share: float) -> web.Response:
    """What a browser shows until the model is loaded, of which `share` is done."""
    body = ASSETS.files["loading.html"].body
    percent = f"{100 * share:.0f}".encode()
    page = Asset.of(
        "loading.html", body.replace(b'value="0"', b'value="%b"' % percent).replace(b">0<", b">%b<" % percent)
    )
    return _answer(request, page, NEVER, status=503)
