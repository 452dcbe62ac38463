"""Send the notices of the outbox to every receiver, for a bounded time; forget those that all receivers have."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from pipeline_assets.config import notify_secret
from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.masking import receiver_id, receiver_place
from pipeline_assets.domain.notices import SEND_AGAIN, Notice, NoticeKind, identity_of
from pipeline_assets.domain.plain_text import as_chat, bounded
from pipeline_assets.domain.retention import NOTICES_KEPT
from pipeline_assets.domain.settings import Settings
from resources.guarded_http import post
from resources.ledger.outbox import Receiver, SetAside
from resources.ledger.store import Ledger

ROUND_SECONDS = 10.0
_MOST_AT_ONCE = 100
_ATTEMPTS = 3
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=30), timedelta(minutes=15)
MOST_REFUSALS = 5
"""Refusals of the same body before a receiver's later notices pass it."""

_MOST_LINES = 20
_LONGEST_TEXT = 3_500
"""In characters; chat systems cut at 4,000."""

_WORDS = {
    NoticeKind.CHANGE: "published final days changed",
    NoticeKind.REFUSAL: "days refused",
    NoticeKind.REFUSAL_END: "days no longer refused",
    NoticeKind.GOLDEN_MISMATCH: "days that differ from golden totals",
    NoticeKind.GOLDEN_AGREEMENT: "days that do so no longer",
}


@dataclass
class Told:
    """The result of a round for one receiver."""

    place: str
    sent: int = 0
    left: int = 0
    reason: str = ""
    refused: int = 0
    refusal: str = ""

    def __str__(self) -> str:
        """One sentence."""
        sent, left, refused = (f"{n:,} notice{'s' if n != 1 else ''}" for n in (self.sent, self.left, self.refused))
        parts = [f"took {sent}"] if self.sent or not (self.left or self.refused) else []
        if self.refused:
            parts.append(f"refuses {refused} for good ({self.refusal}): set aside, sent by `{SEND_AGAIN}` alone")
        if self.left:
            parts.append(f"did not take {left}: {self.reason}; kept, and sent by the next run")
        return f"{self.place} {', then '.join(parts)}"


def register_receivers(ledger: Ledger, settings: Settings) -> dict[str, Receiver]:
    """Register the configured receivers; a new one gets notices from now on."""
    return ledger.outbox.register({receiver_id(url): receiver_place(url) for url in settings.notify_urls})


def send_notices(
    ledger: Ledger, settings: Settings, *, is_due_only: bool = False, is_again: bool = False
) -> list[Told]:
    """Send every receiver its pending notices, for `ROUND_SECONDS` at most; raises no receiver's failure.

    Unsent notices stay in the outbox. After `MOST_REFUSALS` final refusals a body is set aside, and later notices pass.
    `is_due_only`: leave out receivers that failed recently, longer after more failures. `is_again`: first resend set-aside ones.
    """
    receivers = register_receivers(ledger, settings)
    refused = {one.receiver_id for one in ledger.set_aside.all()} if is_again else set()
    told, rounds = [], []
    for url in settings.notify_urls:
        receiver = receivers[receiver_id(url)]
        if not receiver.waiting and receiver.id not in refused:
            continue
        if _is_due(receiver, datetime.now(UTC), is_due_only=is_due_only):
            rounds.append(_Round(settings, url, receiver, is_again=is_again))
            rounds[-1].start()
        else:
            reason = receiver.error or "it failed a short while ago"
            told.append(Told(receiver.place, left=receiver.waiting, reason=reason))
    return [*told, *(one.result() for one in rounds)]


def _is_due(receiver: Receiver, now: datetime, *, is_due_only: bool) -> bool:
    pause = min(_FIRST_PAUSE * 2.0 ** min(receiver.failures, 10), _LONGEST_PAUSE)
    is_resting = is_due_only and receiver.failed_at is not None and now < receiver.failed_at + pause
    return not is_resting and (receiver.retry_at is None or now >= receiver.retry_at)


class _Round(threading.Thread):
    """One receiver in its own thread, which ends by itself or is abandoned: no receiver delays another one or a load."""

    def __init__(self, settings: Settings, url: str, receiver: Receiver, *, is_again: bool) -> None:
        super().__init__(name="tidemark-notices", daemon=True)
        self._settings, self._url, self._receiver, self._is_again = settings, url, receiver, is_again
        self._secret, self._deadline = notify_secret(), time.monotonic() + ROUND_SECONDS
        self._told = Told(receiver.place, left=receiver.waiting)

    def result(self) -> Told:
        self.join(max(0.0, self._deadline - time.monotonic()) + 0.5)
        told = replace(self._told)
        if self.is_alive():
            told.reason = "it did not answer in time"
            self._mark_failed(told.reason)
        told.left = max(1, told.left) if told.reason else 0
        return told

    def _mark_failed(self, reason: str) -> None:
        """Otherwise each further round would begin another request beside a hanging one, unseen."""
        with suppress(TidemarkError), closing(Ledger(self._settings.ledger_database_url)) as ledger:
            ledger.outbox.mark_failed(self._receiver.id, reason, None)

    def run(self) -> None:
        try:
            with closing(Ledger(self._settings.ledger_database_url)) as ledger:
                for aside, batch in self._batches(ledger):
                    self._send(ledger, aside, batch)
                    if self._told.reason:
                        break
        except TidemarkError as error:
            self._told.reason = str(error)
        except Exception as error:
            # No load may fail for it.
            self._told.reason = f"sending failed ({type(error).__name__})"
            self._mark_failed(self._told.reason)

    def _batches(self, ledger: Ledger) -> Iterator[tuple[SetAside | None, list[Notice]]]:
        for one in ledger.set_aside.all() if self._is_again else ():
            if one.receiver_id == self._receiver.id:
                yield one, ledger.set_aside.notices(one)
        while pending := ledger.outbox.pending(self._receiver.id, _MOST_AT_ONCE):
            for _, of_run in groupby(pending, key=lambda notice: notice.recorded_by):
                yield None, list(of_run)

    def _send(self, ledger: Ledger, aside: SetAside | None, batch: Sequence[Notice]) -> None:
        told, outbox, receiver = self._told, ledger.outbox, self._receiver.id
        body = envelope(batch, batch[0].recorded_by)
        attempts = 1 if self._receiver.failures else _ATTEMPTS
        sent = json.dumps(body).encode()
        answer = post(self._url, sent, self._secret, attempts=attempts, deadline=self._deadline)
        if answer.is_taken and aside is None:
            outbox.mark_sent(receiver, batch[-1].number)
        elif answer.is_taken and aside is not None:
            ledger.set_aside.mark_sent(aside)
        elif answer.is_for_good and aside is not None:
            ledger.set_aside.mark_refused(aside, answer.reason)
        else:
            refused_body = body["id"] if answer.is_for_good else None
            if outbox.mark_failed(receiver, answer.reason, answer.retry_at, refused_body) < MOST_REFUSALS:
                told.reason = answer.reason
                return
            ledger.set_aside.add(receiver, batch, answer.reason)
        told.left -= len(batch) if aside is None else 0
        if answer.is_taken:
            told.sent += len(batch)
        else:
            told.refused, told.refusal = told.refused + len(batch), answer.reason


def forget_notices(ledger: Ledger, settings: Settings, now: datetime, *, is_dry_run: bool) -> int:
    """Remove changes' notices that all receivers have had for long; returns how many, or how many would go."""
    return ledger.outbox.forget(list(map(receiver_id, settings.notify_urls)), now - NOTICES_KEPT, is_dry_run=is_dry_run)


def envelope(notices: Sequence[Notice], run_id: str | None) -> dict[str, Any]:
    """The body of one request: the notices of one run, as text for a chat and as data."""
    counts = {kind: sum(notice.kind is kind for notice in notices) for kind in NoticeKind}
    head = "Tidemark: " + ", ".join(f"{_WORDS[kind]}: {count:,}" for kind, count in counts.items() if count)
    lines = [f"• {notice.text}" for notice in notices[:_MOST_LINES]]
    if len(notices) > _MOST_LINES:
        lines.append(f"• and {len(notices) - _MOST_LINES:,} more")
    return {
        "text": as_chat(bounded("\n".join([head, *lines]), _LONGEST_TEXT)),
        "mrkdwn": False,
        "version": 1,
        "id": identity_of(*(notice.id for notice in notices)),
        "run": run_id,
        "notices": [notice.to_json() for notice in notices],
    }
