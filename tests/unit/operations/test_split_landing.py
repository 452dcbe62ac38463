"""Recovered objects among regular ones: found by evidence, moved without loss despite kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LandingAccessError, TidemarkError
from pipeline_assets.domain.records import Exclusion
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.operations import split_landing as comparison
from pipeline_assets.operations.split_landing import Placed, Selection, find, read_prefix, relocate
from resources import failpoints
from resources.failpoints import Failpoint
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger
from tests.support.builders import a_body, events_on
from tests.support.points import OF_MOVES, watching
from tests.support.policies import policy, recorded_requests, refused, unneeded
from tests.support.s3 import BUCKET
from tests.support.shell import commands

PROJECT, DAY = "10001", date(2026, 2, 2)
GRAMMAR = KeyGrammar("{prefix}_{date}_{hour}_complete")
RECOVERED_AT = datetime(2026, 2, 20, 9, 30, tzinfo=UTC)
Objects = dict[str, bytes]


def a_key(hour: int = 10, shard: int = 1, *, source: Source = Source.REGULAR, day: date = DAY) -> str:
    return GRAMMAR.format_delivery(BatchKey(source, PROJECT, day), hour, shard)


def a_marker(hour: int = 10, *, source: Source = Source.REGULAR) -> str:
    return GRAMMAR.format_marker(BatchKey(source, PROJECT, DAY), hour)


def target(hour: int = 10, shard: int = 1) -> str:
    return a_key(hour, shard, source=Source.BACKFILL)


def body(prefix: str, count: int = 10) -> bytes:
    return a_body(events_on(DAY, count, prefix=prefix))


@dataclass(frozen=True)
class Place:
    url: str
    put: Callable[[str, bytes], Any]
    objects: Callable[[], Objects]

    @cached_property
    def landing(self) -> LandingStore:
        return LandingStore.from_settings(Settings(landing_url=self.url))

    def fill(self, objects: Mapping[str, bytes]) -> None:
        for key, content in objects.items():
            self.put(key, content)


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    root = tmp_path / "landing"
    root.mkdir()

    def put(key: str, content: bytes) -> None:
        (root / key).parent.mkdir(exist_ok=True)
        (root / key).write_bytes(content)

    def objects() -> Objects:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    return Place(str(root), put, objects)


@pytest.fixture
def s3(bucket: Any) -> Place:
    def objects() -> Objects:
        return {one.key.removeprefix("exports/"): one.get()["Body"].read() for one in bucket.objects.all()}

    def put(key: str, content: bytes) -> None:
        bucket.put_object(Key=f"exports/{key}", Body=content)

    return Place(f"s3://{BUCKET}/exports", put, objects)


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def written_at(place: Place, moment: datetime, *keys: str) -> None:
    for key in keys:
        os.utime(Path(place.url, key), (moment.timestamp(), moment.timestamp()))


def written_in_turn(place: Place, *keys: str) -> None:
    for number, key in enumerate(keys):
        written_at(place, datetime(2026, 2, 2, 12, number, tzinfo=UTC), key)


def found_in(place: Place, **search: Any) -> Selection:
    return find(PROJECT, place.landing, Settings(), lambda _: None, **search)


def keys_of(selection: Selection) -> dict[str, tuple[str, ...]]:
    return {one.upload.key: one.evidence for one in selection.recovered}


Relocations = list[tuple[Placed, TidemarkError | None]]


def moved(place: Place, selection: Selection) -> Relocations:
    return list(relocate(selection.recovered, PROJECT, place.landing, GRAMMAR, (), lambda _: False))


def refusals(relocations: Relocations) -> dict[str, TidemarkError]:
    return {placed.upload.key: refusal for placed, refusal in relocations if refusal is not None}


def test_an_upload_later_than_its_own_marker_is_found_and_others_are_not(folder: Place) -> None:
    """Outcome: late uploads, also of an hour without a marker, each with its time; markers and ordinary objects stay."""
    ordinary = [a_key(8), a_key(9), a_key(9, 2), a_marker(8), a_marker(9)]
    late = [a_key(8, 5), a_key(9, 5), a_key(11)]
    folder.fill({key: body(key) for key in (*ordinary, *late)})
    folder.put(a_key(8, 5), body(a_key(8)))
    written_at(folder, datetime(2026, 2, 2, 11, 5, tzinfo=UTC), *ordinary)
    written_at(folder, datetime(2026, 2, 2, 11, 40, tzinfo=UTC), a_key(9, 2))
    written_at(folder, RECOVERED_AT, *late)

    found = keys_of(found_in(folder))

    assert list(found) == late
    assert found[a_key(9, 5)] == ("uploaded 2026-02-20 09:30 UTC, 18 days after the marker of its hour",)
    (told,) = found[a_key(11)]
    assert told.startswith("uploaded 2026-02-20 09:30 UTC, 15 days after the deadline of its day")
    assert found[a_key(8, 5)][1] == f"10 of its 10 events are among the 10 of {a_key(8)}"


def test_content_that_doubles_an_earlier_object_is_found(folder: Place) -> None:
    """Scenario: equal bytes, a cut hour that came whole, one recovered in parts; overlapping and silent hours.
    Outcome: the later ones of the first three."""
    hour = events_on(DAY, 40, prefix="whole")
    first = {
        a_key(8): body("a"), a_key(9): a_body(hour[:15]), a_key(9, 2): body("b"),
        a_key(12): a_body(events_on(DAY, 40, prefix="c")), a_key(3): a_body([]), a_key(4): a_body([]),
        a_key(5): a_body([*events_on(DAY, 20, prefix="d"), *hour[20:23]]),
        # Silent hours, of whose few events the vendor repeats one or two.
        a_key(13): a_body(events_on(DAY, 3, prefix="e")),
    }  # fmt: skip
    again = {
        a_key(8, 7): first[a_key(8)],
        a_key(9, 7): a_body(hour),
        a_key(12, 7): a_body(events_on(DAY, 40, prefix="c")[5:9]),
        a_key(14): a_body([*events_on(DAY, 3, prefix="e")[:2], *events_on(DAY, 1, prefix="f")]),
    }
    folder.fill({**first, **again})
    written_at(folder, datetime(2026, 2, 2, 12, tzinfo=UTC), *first)
    written_at(folder, datetime(2026, 2, 2, 15, tzinfo=UTC), *again)
    objects, _ = read_prefix(folder.landing.list_folder(PROJECT), PROJECT, GRAMMAR)
    doubles, _ = comparison.find_doubles(objects, (), folder.landing, Settings(), lambda _: None)

    told = {8: "10 of its 10 events are among the 10", 9: "15 of its 40 events are among the 15"}
    told[12] = "4 of its 4 events are among the 40"
    expected = {a_key(hour, 7): f"{counts} of {a_key(hour)}" for hour, counts in told.items()}
    assert {placed.upload.key: reason for placed, reason in doubles.items()} == expected


def test_an_object_that_cannot_be_read_is_told_and_compared_with_none(folder: Place) -> None:
    folder.fill({a_key(8): body("a"), a_key(8, 2): body("a"), a_key(8, 3): b"no gzip"})
    written_in_turn(folder, a_key(8, 3), a_key(8), a_key(8, 2))
    found = found_in(folder)
    assert list(keys_of(found)) == [a_key(8, 2)]
    assert found.notes == (f"1 objects cannot be read and were compared with none: {a_key(8, 3)}",)


def test_what_is_found_does_not_depend_on_what_was_moved_before(folder: Place) -> None:
    """Three copies of one hour: the first stays, whichever other is moved first."""
    copies = [a_key(8), a_key(8, 2), a_key(8, 3)]
    folder.fill({key: a_body(events_on(DAY, 20 + number)) for number, key in enumerate(copies)})
    written_in_turn(folder, *copies)
    assert list(keys_of(found_in(folder))) == copies[1:]
    Path(folder.url, copies[1]).unlink()
    assert list(keys_of(found_in(folder))) == copies[2:]


def test_a_range_of_time_leaves_out_what_came_as_regular_objects_come(place: Place) -> None:
    """A live bucket's present hour is not part of today's recovery."""
    now = datetime.now(UTC)
    fresh = a_key(now.hour, day=now.date())
    place.fill({a_key(8): body("a"), fresh: body("b"), a_marker(8): b""})
    found = found_in(place, after=now - timedelta(hours=1))
    assert list(keys_of(found)) == [a_key(8)]
    assert found.notes == (
        "1 objects of that range came within 3 h of their hour, as regular ones do: they stay; --keys moves them",
    )
    assert keys_of(found_in(place, before=now - timedelta(hours=1))) == {}
    assert keys_of(found_in(place, after=now - timedelta(hours=1), last=DAY - timedelta(days=1))) == {}


def test_a_landing_that_was_copied_is_not_taken_for_recovered(folder: Place) -> None:
    """A copy without times makes all files late; only a majority is doubted."""
    folder.fill({a_key(hour, shard): body(f"{hour}-{shard}", 1) for hour in range(24) for shard in (1, 2, 3)})
    found = found_in(folder)
    assert keys_of(found) == {}
    assert "this landing was copied" in found.notes[0]
    objects, _ = read_prefix(folder.landing.list_folder(PROJECT), PROJECT, GRAMMAR)
    assert len(comparison.late_uploads(objects, Settings())) == 72


def test_a_list_names_objects_and_what_cannot_be_moved_is_refused(folder: Place) -> None:
    """Outcome: movable objects; the moved one is reported; one sentence for each of the others."""
    misnamed = f"{PROJECT}/{target(9).rpartition('/')[2]}"
    strangers = [f"{PROJECT}/notes.txt", "10002/10002_2026-02-02_1#1.json.gz", a_key(23)]
    folder.fill({a_key(8): body("a"), misnamed: body("b"), strangers[0]: b"x", target(7): body("c")})
    found = found_in(folder, keys=(a_key(8), misnamed, *strangers, a_key(7)))
    assert list(keys_of(found)) == [a_key(8), misnamed]
    assert {one.subject for one in found.refusals} == set(strangers)
    assert found.notes == ("1 of the list were moved before",)
    assert refusals(moved(folder, found)) == {}
    assert folder.objects().keys() == {strangers[0], target(7), target(8), target(9), *SEPARATE[3:]}


def test_a_recovery_named_as_one_is_found_with_its_marker(folder: Place) -> None:
    names = [target(9).rpartition("/")[2], a_marker(9, source=Source.BACKFILL).rpartition("/")[2]]
    folder.fill({f"{PROJECT}/{name}": b"" if name.endswith("complete") else body("a") for name in names})
    found = found_in(folder)
    assert keys_of(found) == {f"{PROJECT}/{name}": ("named as a recovery",) for name in names}
    assert refusals(moved(folder, found)) == {}
    assert folder.objects() == {target(9): body("a"), a_marker(9, source=Source.BACKFILL): b""}


MIXED = [a_key(8, 5), a_key(8, 6), a_key(9)]
SEPARATE = [target(8, 5), target(8, 6), target(9), *(a_marker(hour, source=Source.BACKFILL) for hour in (8, 9))]


def a_mixed_landing(place: Place) -> Objects:
    """Two hours hold recovered objects; returns the landing of a separate start."""
    stays = {a_key(8): body("a"), a_marker(8): b"", a_marker(9): b"", a_key(11): body("b")}
    recovered = {key: body(key) for key in MIXED}
    place.fill({**stays, **recovered})
    return {**stays, **dict(zip(SEPARATE[:3], recovered.values(), strict=True)), **dict.fromkeys(SEPARATE[3:], b"")}


def test_objects_are_moved_data_first_then_the_marker_then_the_sources_go(place: Place) -> None:
    separate = a_mixed_landing(place)
    points: list[tuple[Failpoint, str]] = []
    with watching(lambda point, qualifier: points.append((point, qualifier))):
        done = moved(place, found_in(place, keys=tuple(MIXED)))
    assert (len(done), refusals(done)) == (3, {})
    assert place.objects() == separate
    of_hour = [point for point, _ in points if point in OF_MOVES][:7]
    first = [Failpoint.AFTER_COPY, Failpoint.AFTER_VERIFY]
    assert of_hour == [*first, *first, Failpoint.AFTER_MARKER, Failpoint.AFTER_DELETE, Failpoint.AFTER_DELETE]
    assert moved(place, found_in(place, keys=tuple(MIXED))) == []


_PROGRAM = """
import sys
from pipeline_assets.domain.settings import Settings
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.operations.split_landing import find, relocate
from resources.landing.store import LandingStore
settings = Settings(landing_url=sys.argv[1])
landing = LandingStore.from_settings(settings)
found = find("10001", landing, settings, lambda _: None, keys=sys.argv[2:])
list(relocate(found.recovered, "10001", landing, KeyGrammar(settings.marker_pattern), (), lambda _: False))
"""


def test_killed_at_each_point_and_repeated_it_ends_as_if_it_had_lived(folder: Place) -> None:
    """Scenario: SIGKILL at each point in turn, and at the last delete.
    Outcome: no object is ever nowhere, or gone before its hour has a marker; in the end each is in its place once."""
    separate = a_mixed_landing(folder)
    content = {*folder.objects().values()}
    kills = [*(point.value for point in sorted(OF_MOVES)), f"{Failpoint.AFTER_DELETE}:{MIXED[-1]}"]
    for armed in kills:
        environment = {**os.environ, failpoints.VARIABLE: armed}
        command = [sys.executable, "-c", _PROGRAM, folder.url, *MIXED]
        killed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, f"{armed}: {killed.stderr}"
        present = folder.objects()
        assert {*present.values()} == content
        for old, new, marker in zip(MIXED, SEPARATE, [*SEPARATE[3:4] * 2, SEPARATE[4]], strict=False):
            assert old in present or {new, marker} <= present.keys()
    assert refusals(moved(folder, found_in(folder, keys=tuple(MIXED)))) == {}
    assert folder.objects() == separate


def test_a_target_with_other_bytes_is_refused_and_the_others_go_on(folder: Place) -> None:
    """Outcome: one sentence with both objects and the fix; both stay; no marker until the conflict is gone."""
    separate = a_mixed_landing(folder)
    folder.put(target(8, 5), body("another"))
    relocations = moved(folder, found_in(folder, keys=tuple(MIXED)))
    refused = refusals(relocations)
    error = refused[a_key(8, 5)]
    assert (error.subject, len(relocations)) == (a_key(8, 5), 3)
    # Another object of the hour is copied and stays too, or a repetition would never mark the hour.
    assert refused.keys() == {a_key(8, 5), a_key(8, 6)}
    assert error.reason.startswith(f"{target(8, 5)} is there already with other bytes")
    assert "delete the wrong one" in error.hint
    objects = folder.objects()
    assert (objects[a_key(8, 5)], objects[target(8, 5)]) == (body(a_key(8, 5)), body("another"))
    assert {a_key(8, 6), target(8, 6), target(9), a_marker(9, source=Source.BACKFILL)} <= objects.keys()
    assert a_marker(8, source=Source.BACKFILL) not in objects

    folder.put(target(8, 5), body(a_key(8, 5)))
    assert refusals(moved(folder, found_in(folder, keys=tuple(MIXED)))) == {}
    assert folder.objects() == separate


@pytest.mark.parametrize("changed", [a_key(9), target(9)], ids=["the source", "the copy"])
def test_what_changes_before_the_delete_stays(place: Place, changed: str) -> None:
    """A source or copy that changes after the comparison: nothing is deleted."""
    place.put(a_key(9), body("a"))

    def overwrite(point: Failpoint, _: str) -> None:
        if point is Failpoint.AFTER_MARKER:
            place.put(changed, body("new", 7))

    found = found_in(place, keys=(a_key(9),))
    with watching(overwrite):
        (error,) = refusals(moved(place, found)).values()
    assert changed in (error.subject, a_key(9))
    assert "stays" in error.reason
    objects = place.objects()
    assert (objects[changed], a_key(9) in objects, target(9) in objects) == (body("new", 7), True, True)


def test_a_bucket_deletes_the_version_that_was_copied_and_no_other(s3: Place) -> None:
    """The condition travels with the request, because others may write between look and delete."""
    s3.put(a_key(9), body("a"))
    landing: Any = s3.landing
    upload = landing.find(a_key(9))
    s3.put(a_key(9), body("new", 7))
    assert not landing._place.delete(landing._opened(), upload.key, upload.etag)
    assert s3.objects() == {a_key(9): body("new", 7)}


def test_nothing_leaves_the_folder_that_landing_is(folder: Place, tmp_path: Path) -> None:
    """A link among the objects is refused; a backfill folder that leads out of landing stops the move."""
    outside = tmp_path / "outside"
    outside.mkdir()
    folder.fill({a_key(8): body("a"), a_key(9): body("b")})
    Path(folder.url, a_key(10)).symlink_to(Path(folder.url, a_key(9)))
    (error,) = refusals(moved(folder, found_in(folder, keys=(a_key(10),)))).values()
    assert "is a link" in error.reason
    Path(folder.url, f"{PROJECT}-backfill").symlink_to(outside)
    with pytest.raises(LandingAccessError, match="leads out of landing"):
        moved(folder, found_in(folder, keys=(a_key(8),)))
    assert a_key(8) in folder.objects()
    assert list(outside.iterdir()) == []


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def call(place: Place, *words: str) -> Any:
        warehouse = str(tmp_path / "warehouse") if "://" not in place.url else f"s3://{BUCKET}/warehouse"
        environment = {
            "TIDEMARK_LANDING_URL": place.url, "TIDEMARK_PROJECTS": PROJECT, "DAGSTER_HOME": str(tmp_path),
            "TIDEMARK_LEDGER_URL": f"sqlite:///{tmp_path}/ledger.db", "TIDEMARK_WAREHOUSE_URL": warehouse,
        }  # fmt: skip
        return commands("split-landing", "--project", PROJECT, **environment)(*words)

    return call


def test_the_command_shows_moves_and_says_what_is_next(shell: Any, folder: Place, tmp_path: Path) -> None:
    """Outcome: nothing is touched before --apply; exit codes 0, 0, 0, 2 and 1."""
    separate = a_mixed_landing(folder)
    before = folder.objects()
    written_at(folder, datetime(2026, 2, 2, 11, 5, tzinfo=UTC), *before)
    written_at(folder, RECOVERED_AT, *MIXED)
    uploaded = ("--uploaded-after", "2026-02-20", "--uploaded-before", "2026-02-20T10:00")
    words = (*uploaded, "--from", "2026-02-01", "--to", "2026-02-03")

    shown = shell(folder, *words)
    assert (shown.exit_code, folder.objects()) == (0, before)
    assert "uploaded 2026-02-20 09:30 UTC, 18 days after its hour" in shown.stdout
    assert "3 objects (" in shown.stdout
    listed = json.loads(shell(folder, "--json").stdout)
    assert [one["key"] for one in listed["objects"]] == MIXED

    done = shell(folder, *words, "--apply")
    assert done.exit_code == 0, done.output
    assert folder.objects() == separate
    assert "3 of 3 objects were moved" in done.stdout
    assert "tidemark load --source backfill --from 2026-02-02 --to 2026-02-02" in done.stdout
    again = shell(folder, *words, "--apply")
    assert (again.exit_code, "nothing was recovered" in again.stdout) == (0, True)

    assert shell(folder, "--keys", str(tmp_path / "none")).exit_code == 2
    assert shell(folder, "--uploaded-after", "yesterday").exit_code == 2
    named = tmp_path / "keys"
    named.write_text(f"# by hand\n\n{a_key(11)}\n{MIXED[0]}\n", "utf-8")
    folder.put(target(11), body("another"))
    conflict = shell(folder, "--keys", str(named), "--apply")
    assert conflict.exit_code == 1
    assert f"{a_key(11)}: {target(11)} is there already with other bytes" in conflict.stdout
    assert "0 of 1 objects were moved" in conflict.stdout


def test_the_command_works_on_a_bucket(shell: Any, s3: Place, tmp_path: Path) -> None:
    """With its policy's rights, each of which it needs."""
    separate = a_mixed_landing(s3)
    (tmp_path / "keys").write_text("\n".join(MIXED), "utf-8")
    with recorded_requests(tmp_path) as requests:
        done = shell(s3, "--keys", str(tmp_path / "keys"), "--apply")
        asked = requests.rights()
    assert (done.exit_code, s3.objects()) == (0, separate), done.output
    assert (refused(policy("s3-split"), asked), unneeded(policy("s3-split"), asked)) == ([], [])


def test_an_hour_whose_recovery_began_gets_no_marker_of_a_move(shell: Any, folder: Place, tmp_path: Path) -> None:
    """Outcome: the two claimed hours without a marker stay, with the command that ends the recovery, exit 1."""
    moves = [a_key(hour) for hour in (7, 8, 9, 10, 11)]
    folder.fill({key: body(key) for key in moves})
    folder.put(a_marker(10, source=Source.BACKFILL), b"")
    misnamed = f"{PROJECT}/{a_marker(9, source=Source.BACKFILL).rpartition('/')[2]}"
    folder.put(misnamed, b"")
    (tmp_path / "keys").write_text("\n".join([*moves, misnamed]), "utf-8")
    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        for hour in (8, 9, 10):
            ledger.recoveries.begin(PROJECT, Hour(DAY, hour))
        ledger.recoveries.end(PROJECT, Hour(DAY, 8))
        ledger.recoveries.begin("10002", Hour(DAY, 7))

        def begin(point: Failpoint, key: str) -> None:
            if (point, key) == (Failpoint.AFTER_COPY, a_key(11)):
                ledger.recoveries.begin(PROJECT, Hour(DAY, 11))

        with watching(begin):
            done = shell(folder, "--keys", str(tmp_path / "keys"), "--apply")

        assert done.exit_code == 1, done.output
        marked = {hour for hour in range(24) if a_marker(hour, source=Source.BACKFILL) in folder.objects()}
        assert marked == {7, 8, 10}
        assert {key for key in folder.objects() if key.startswith(f"{PROJECT}/")} == {a_key(9), a_key(11), misnamed}
        assert target(9) not in folder.objects()
        assert "3 of 6 objects were moved" in done.stdout
        for hour in ("09", "11"):
            assert f"`tidemark recover --from {DAY}T{hour} --to {DAY}T{hour} --project {PROJECT}`" in done.stdout
        # The command's order: the marker, then the end of the claim.
        for hour in (9, 11):
            folder.put(a_marker(hour, source=Source.BACKFILL), b"")
            ledger.recoveries.end(PROJECT, Hour(DAY, hour))
    again = shell(folder, "--keys", str(tmp_path / "keys"), "--apply")
    assert again.exit_code == 0, again.output
    assert {key for key in folder.objects() if key.startswith(f"{PROJECT}/")} == set()


def test_an_excluded_object_is_not_moved_past_its_exclusion(shell: Any, folder: Place, tmp_path: Path) -> None:
    folder.put(a_key(9), body("a"))
    excluded = Exclusion(BatchKey(Source.REGULAR, PROJECT, DAY), a_key(9), "e", "s", "a test")
    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        ledger.interventions.exclude([excluded], "run")
    (tmp_path / "keys").write_text(a_key(9), "utf-8")
    done = shell(folder, "--keys", str(tmp_path / "keys"), "--apply")
    assert (done.exit_code, "is excluded" in done.stdout) == (1, True)
    assert folder.objects() == {a_key(9): body("a")}
