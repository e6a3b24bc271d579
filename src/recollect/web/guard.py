"""Access control for the page: checks of host, origin, token and request size, and security headers."""

import hmac
import json
import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

ASGI = Any

_COOKIE = "recollect_token"
"""Cookie name, followed by the port: browsers share the cookies of a host among all its ports."""
_CSRF_HEADER = "x-recollect"
"""Custom header required for changes: other sites cannot send it without a CORS preflight, which fails."""

JSON_LIMIT = 4 * 2**20  # the ids of all pictures on a map
PICTURE_LIMIT = 32 * 2**20

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
_PAGE = re.compile(r"/(library/\w+/)?")
NOTEBOOKS = "http://localhost:* http://127.0.0.1:*"
"""Origins that may show an embedded page in a frame."""

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
    """ASGI middleware that checks all requests, including those for static files.

    Args:
        hosts: allowed host names without port (against DNS rebinding); empty allows any, with a token.
        token: secret that browsers must send; None on loopback.
        embedded: let pages on this machine, such as notebooks, show the page in a frame.
    """

    def __init__(self, app: ASGI, hosts: frozenset[str], token: str | None = None, embedded: bool = False) -> None:
        self.app, self.hosts, self.token, self.embedded = app, hosts, token, embedded
        ancestors = NOTEBOOKS if embedded else "'none'"
        self.headers = {**HEADERS, "content-security-policy": f"{_POLICY}; frame-ancestors {ancestors}"}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Reject the request, or pass it to the application."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        response = self._reject(request) or self._token_response(request)
        if response is not None:
            await response(scope, receive, send)
        else:
            await self._call_with_limit(request, receive, send)

    def _reject(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self.hosts and _name(host) not in self.hosts:
            known = " or ".join(sorted(self.hosts))
            more = "to allow other names, run `recollect serve` with --host 0.0.0.0 --token SECRET"
            return _answer(400, f"this page can be opened only as {known}; {more}")
        elsewhere = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        foreign = origin is not None and origin.split("://")[-1] != host
        if foreign or (elsewhere and not _is_navigation(request, self.embedded)):
            return _answer(403, "requests from other sites are not allowed")
        if request.method not in ("GET", "HEAD", "POST", "DELETE"):
            return _answer(405, "method not allowed")
        if request.method in ("POST", "DELETE") and _CSRF_HEADER not in request.headers:
            return _answer(403, f"requests that change data need the header {_CSRF_HEADER}")
        return None

    def _token_response(self, request: Request) -> Response | None:
        """Return the response to a request without the token, or with the token in its address; else None."""
        if self.token is None:
            return None
        port = (request.scope.get("server") or (None, 0))[1]
        cookie = f"{_COOKIE}_{port}"  # pages on two ports have separate cookies
        if given := request.query_params.get("token"):
            if not self._is_token(given):
                return _answer(401, "wrong token")
            # Not Strict: such a cookie is not sent if the page is opened by a link on another site.
            set_cookie = f"{cookie}={self.token}; HttpOnly; SameSite=Lax; Path=/"
            return _answer(303, "", {"location": request.scope["path"], "set-cookie": set_cookie})
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(bearer) or self._is_token(request.cookies.get(cookie, "")):
            return None
        return _answer(401, "token required: open the address that `recollect serve` printed")

    def _is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    async def _call_with_limit(self, request: Request, receive: Any, send: Any) -> None:
        limit = PICTURE_LIMIT if request.scope["path"].endswith(("/api/pictures", "/api/added")) else JSON_LIMIT
        too_large = _answer(413, f"more than {limit >> 20} MB")
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > limit:
            await _drain(receive, 4 * limit)
            await too_large(request.scope, receive, send)
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
            await self.app(request.scope, counted, with_headers)
        except _TooLargeError:
            if not started:
                await too_large(request.scope, receive, send)


async def _drain(receive: Any, most: int) -> None:
    """Read and discard the request: browsers read no response before that, and would report a lost connection."""
    read = 0
    while read < most:
        message = await receive()
        read += len(message.get("body", b""))
        if not message.get("more_body"):
            return


def _is_navigation(request: Request, embedded: bool) -> bool:
    """Whether a request opens the page by a link or in an allowed frame, which is safe from any site."""
    into = request.headers.get("sec-fetch-dest")
    shown = into == "document" or (embedded and into == "iframe")
    window = shown and request.headers.get("sec-fetch-mode") == "navigate"
    return bool(window and request.method == "GET" and _PAGE.fullmatch(request.scope["path"]))


def _name(host: str) -> str:
    """Return the host without its port."""
    if host.startswith("["):
        return host[1 : host.find("]")]
    return host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host


def _answer(status: int, text: str, more: dict[str, str] | None = None) -> Response:
    body = json.dumps({"error": text}) if text else ""
    return Response(body, status, {**HEADERS, **(more or {})}, "application/json")
