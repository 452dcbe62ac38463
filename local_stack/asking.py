"""Query a server on this machine over HTTP, without proxies."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from typing import Any

from local_stack.environment import HOST

_LONGEST_SECONDS = 5


def ask_json(port: int, path: str, query: str | None = None) -> dict[str, Any] | None:
    """Return the JSON answer to a GET, or to a GraphQL query if given; None where no valid answer comes."""
    body = None if query is None else json.dumps({"query": query}).encode()
    request = urllib.request.Request(f"http://{HOST}:{port}{path}", body, {"content-type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=_LONGEST_SECONDS
        ) as answer:
            found = json.load(answer)
    except (OSError, ValueError, HTTPException):
        return None
    return found if isinstance(found, dict) else None
