"""Keep the page to its own user: checks of host, origin, token and request size, and headers of every answer."""

import hmac
import json
import re
from typing import Any
from urllib.parse import parse_qs

from starlette.responses import Response

ASGI = Any

COOKIE = "recollect_token"
"""Before the port: a browser sends the cookies of all ports of a host to each of them."""
OWN_HEADER = "x-recollect"
"""A header that another site's page cannot send without asking first, which it may not."""

JSON_LIMIT = 2**20
PICTURE_LIMIT = 32 * 2**20

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
_PAGE = re.compile(r"/(library/\w+/)?")
NOTEBOOKS = "http://localhost:* http://127.0.0.1:*"
"""Who may show an embedded page in a frame."""

HEADERS = {
    "content-security-policy": f"{_POLICY}; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class _TooLargeError(Exception):
    pass


class Guard:
    """ASGI middleware in front of everything, static files included.

    Args:
        hosts: host names, without port, by which the page may be called (against DNS rebinding); empty for any, where
            the token guards.
        token: what a browser must know; None on loopback.
        embedded: let pages of this machine, such as a notebook, show the page in a frame.
    """

    def __init__(self, app: ASGI, hosts: frozenset[str], token: str | None = None, embedded: bool = False) -> None:
        self.app, self.hosts, self.token, self.embedded = app, hosts, token, embedded
        ancestors = NOTEBOOKS if embedded else "'none'"
        self.headers = {**HEADERS, "content-security-policy": f"{_POLICY}; frame-ancestors {ancestors}"}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse a request, or pass it to the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refusal(scope, headers)
        if refused is not None:
            await _answer(*refused)(scope, receive, send)
            return
        if self.token is not None and (given := _query(scope, "token")):
            if hmac.compare_digest(given.encode(), self.token.encode()):
                # not Strict, which is not sent where the page is opened by a link of another site
                cookie = f"{_cookie(scope)}={self.token}; HttpOnly; SameSite=Lax; Path=/"
                await _answer(303, "", {"location": scope["path"], "set-cookie": cookie})(scope, receive, send)
            else:
                await _answer(401, "wrong token")(scope, receive, send)
            return
        if self.token is not None and not self._knows_token(_cookie(scope), headers):
            await _answer(401, "this page needs its token: open the address that `recollect serve` printed")(
                scope, receive, send
            )
            return
        await self._limited(scope, receive, send, headers)

    def _refusal(self, scope: Any, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self.hosts and _name(host) not in self.hosts:
            known = " or ".join(sorted(self.hosts))
            return (
                400,
                f"this page answers to {known} only; to allow other names, serve it with --host 0.0.0.0 --token SECRET",
            )
        origin = headers.get("origin")
        if origin is not None and origin.split("://")[-1] != host:
            return 403, "another site may not use this page"
        elsewhere = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        if elsewhere and not _followed(scope, headers, self.embedded):
            return 403, "another site may not use this page"
        if scope["method"] not in ("GET", "HEAD", "POST", "DELETE"):
            return 405, "no such method"
        if scope["method"] in ("POST", "DELETE") and OWN_HEADER not in headers:
            return 403, f"requests that change something carry the header {OWN_HEADER}"
        return None

    def _knows_token(self, name: str, headers: dict[str, str]) -> bool:
        assert self.token is not None
        given = headers.get("authorization", "").removeprefix("Bearer ")
        pairs = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
        cookies = {key: value for key, _, value in pairs}  # no parser that ends at the first cookie it does not like
        known = self.token.encode()
        return any(hmac.compare_digest(each.encode(), known) for each in (given, cookies.get(name, "")))

    async def _limited(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        limit = PICTURE_LIMIT if scope["path"].endswith(("/api/pictures", "/api/added")) else JSON_LIMIT
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > limit:
            await _drain(receive, 4 * limit)
            await _answer(413, f"more than {limit >> 20} MB")(scope, receive, send)
            return
        read = 0
        started = False

        async def counted() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                raise _TooLargeError
            return message

        async def with_headers(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                own = {name.encode(): value.encode() for name, value in self.headers.items()}
                message = {**message, "headers": [*message["headers"], *own.items()]}
            await send(message)

        try:
            await self.app(scope, counted, with_headers)
        except _TooLargeError:
            if not started:
                await _answer(413, f"more than {limit >> 20} MB")(scope, receive, send)


async def _drain(receive: Any, most: int) -> None:
    """Let a browser finish sending: until then it reads no answer, and would report a lost connection."""
    read = 0
    while read < most:
        message = await receive()
        read += len(message.get("body", b""))
        if not message.get("more_body"):
            return


def _followed(scope: Any, headers: dict[str, str], embedded: bool) -> bool:
    """Whether the page is opened by a link, or in a frame that may show it; that changes nothing."""
    into = headers.get("sec-fetch-dest")
    window = headers.get("sec-fetch-mode") == "navigate" and (into == "document" or (embedded and into == "iframe"))
    return bool(window and scope["method"] == "GET" and _PAGE.fullmatch(scope["path"]))


def _cookie(scope: Any) -> str:
    """Name of the token's cookie; it holds the port, so that pages on two ports have separate cookies."""
    return f"{COOKIE}_{(scope.get('server') or (None, 0))[1]}"


def _name(host: str) -> str:
    """The host without its port."""
    if host.startswith("["):
        return host[1 : host.find("]")]
    return host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host


def _query(scope: Any, name: str) -> str:
    return parse_qs(scope.get("query_string", b"").decode("latin-1")).get(name, [""])[0]


def _answer(status: int, text: str, more: dict[str, str] | None = None) -> Response:
    body = json.dumps({"error": text}) if text else ""
    return Response(body, status, {**HEADERS, **(more or {})}, "application/json")
