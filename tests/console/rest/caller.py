"""Calls of the REST API of a node, and the commands that its responses name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

SECONDS_MAX = 60


class Caller:
    """The REST API of one node, as a script uses it."""

    def __init__(self, http: str, *, auth: tuple[str, str] | None = None) -> None:
        self.base = f"http://{http}"
        self._client = httpx.Client(base_url=self.base, timeout=SECONDS_MAX, auth=auth)

    def close(self) -> None:
        self._client.close()

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """A request below ``/api/v1/clusters/main``, or to any path that starts with a slash."""
        url = path if path.startswith("/") else f"/api/v1/clusters/main/{path}"
        return self._client.request(method, url, **more)

    def call(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        """The JSON of a response with this status."""
        response = self.send(method, path, json=body) if body else self.send(method, path)
        assert response.status_code == status, (method, path, response.status_code, response.text)
        return response.json() if response.content else None

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def problem(self, method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        """Status, code and text of an error."""
        response = (
            self.send(method, path, json=body) if body is not None else self.send(method, path)
        )
        found = response.json()["error"]
        return response.status_code, found["code"], f"{found['message']} {found['remedy']}"


class V3Caller:
    """REST v3 of one cluster."""

    def __init__(self, caller: Caller, root: str = "/v3") -> None:
        self._caller = caller
        self.root = root
        self.cluster_id: str = caller.get(f"{root}/clusters")["data"][0]["cluster_id"]

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        rest = f"/{path}" if path else ""
        url = f"{self.root}/clusters/{self.cluster_id}{rest}"
        return self._caller.send(method, url, **more)

    def call(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        more = {} if body is None else {"json": body}
        response = self.send(method, path, **more)
        assert response.status_code == status, (method, path, response.status_code, response.text)
        return response.json() if response.content else None

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def error(self, method: str, path: str, body: Any = None, *, status: int) -> int:
        """The number of an error."""
        found = self.call(method, path, body, status=status)
        assert found["message"]
        return int(found["error_code"])


def run_command(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command line that a response named, in a shell."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        text,
        shell=True,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env={**os.environ, "PATH": path, **environment},
    )
    assert done.returncode == 0, (text, done.stdout, done.stderr)
    return done
