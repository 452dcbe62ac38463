"""Receivers that miss notices, and why: they fail or refuse, or notices go unsigned."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline_assets.config import notify_secret
from pipeline_assets.domain.masking import receiver_id, receiver_place
from pipeline_assets.domain.notices import SEND_AGAIN, SEND_NOW
from pipeline_assets.domain.settings import Settings
from resources.ledger.store import Ledger


@dataclass(frozen=True)
class ReceiverTrouble:
    """One receiver that missed notices, or that cannot verify their sender."""

    place: str
    """The receiver's URL without its secrets."""
    reason: str
    hint: str
    command: str = ""

    def __str__(self) -> str:
        """One line."""
        command = f" (`{self.command}`)" if self.command else ""
        return f"notices to {self.place}: {self.reason}. {self.hint}{command}"


def receiver_troubles(ledger: Ledger, settings: Settings) -> list[ReceiverTrouble]:
    """The problems of the configured receivers, in their order, then unsigned notices. Raises LedgerError."""
    receivers, refused = ledger.outbox.receivers(), ledger.set_aside.all()
    found: list[ReceiverTrouble] = []
    for url in settings.notify_urls:
        receiver = receivers.get(receiver_id(url))
        if receiver is None:
            continue
        if receiver.failed_at is not None and receiver.waiting:
            last = f"the last {receiver.failed_at:%Y-%m-%d %H:%M} UTC: {receiver.error}"
            reason = f"waiting: {receiver.waiting:,}; failed attempts: {receiver.failures:,}, {last}"
            hint = "Mend the receiver or correct TIDEMARK_NOTIFY_URLS; then send them"
            found.append(ReceiverTrouble(receiver_place(url), reason, hint, SEND_NOW))
        aside = [one for one in refused if one.receiver_id == receiver.id]
        if aside:
            count = sum(one.notices for one in aside)
            reason = f"set aside: {count:,}, since {aside[0].set_aside_at:%Y-%m-%d %H:%M} UTC: {aside[-1].error}"
            hint = "Find out why the receiver refuses them for good; then send them again"
            found.append(ReceiverTrouble(receiver_place(url), reason, hint, SEND_AGAIN))
    return found + unsigned_notices(settings)


def unsigned_notices(settings: Settings) -> list[ReceiverTrouble]:
    """The problem of configured receivers without a signing secret, where there is one."""
    if not settings.notify_urls or notify_secret() is not None:
        return []
    place = ", ".join(map(receiver_place, settings.notify_urls))
    reason = "they go unsigned, so that a receiver cannot tell them from a stranger's"
    return [ReceiverTrouble(place, reason, "Set TIDEMARK_NOTIFY_SECRET, and give it to the receivers")]
