"""Ask a server of this machine over HTTP, past every proxy.

Contains: GET and GraphQL, with JSON as the answer.
Add here: another way of asking.
Does not contain: what an answer means.
"""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from typing import Any

from local_stack.environment import HOST

_LONGEST_SECONDS = 5


def ask_json(port: int, path: str, query: str | None = None) -> dict[str, Any] | None:
    """The answer, of a GraphQL query where there is one; None where there is none that can be read."""
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
