"""An identity provider on the loopback, which issues signed tokens for client credentials."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

CLIENT, SECRET = "billing-service", "s3cr:t +"
ISSUER, AUDIENCE = "https://idp.example", "riverrun"


class IdentityProvider:
    """``with`` starts and stops it. ``failures`` are statuses of the next responses."""

    def __init__(self, *, life_seconds: int = 300, certificate: Path | None = None) -> None:
        self.life_seconds = life_seconds
        self.asked: list[dict[str, Any]] = []
        self.failures: list[int] = []
        self.answer: bytes | None = None
        self.failure: bytes | None = None
        """The body of failures, if not an error of OAuth 2."""
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._scheme = "http"
        if certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> IdentityProvider:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"{self._scheme}://localhost:{self._server.server_address[1]}/token"

    def keys(self) -> str:
        """The published keys (JWKS)."""
        row = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return json.dumps({"keys": [{**row, "kid": "k1", "use": "sig", "alg": "ES256"}]})

    def token(self) -> str:
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": CLIENT,
            "iat": now,
            "exp": now + self.life_seconds,
            "jti": str(len(self.asked)),
        }
        return jwt.encode(claims, self._key, "ES256", headers={"kid": "k1"})

    def _respond(self, headers: Any, body: bytes) -> tuple[int, bytes]:
        self.asked.append({"headers": dict(headers), "form": parse_qs(body.decode())})
        self.may_answer.wait(60)
        if self.failures:
            error = {"error": "invalid_client", "error_description": f"{SECRET} is wrong"}
            return self.failures.pop(0), self.failure or json.dumps(error).encode()
        if self.answer is not None:
            return 200, self.answer
        expected = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if headers["Authorization"] != f"Basic {expected}":
            return 401, b'{"error": "invalid_client"}'
        found = {"access_token": self.token(), "expires_in": self.life_seconds}
        return 200, json.dumps({**found, "token_type": "Bearer"}).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                status, body = provider._respond(self.headers, self.rfile.read(length))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", provider.url)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                return None

        return Handler
