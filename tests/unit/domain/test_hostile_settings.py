"""Any text in settings, run config and command words is a good value, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from pipeline_assets.config import load_settings
from pipeline_assets.domain.checks import AcceptanceKind, read_acceptances
from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.errors import SettingsError, TidemarkError
from pipeline_assets.domain.places import local_path, require_one_question
from pipeline_assets.domain.requests import Rebuild, Recover, Rollback
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.operations.rebuild_build import asked_for
from pipeline_assets.operations.recover_plan import recovery_request
from pipeline_assets.orchestration.assets import KINDS, SHARED
from pipeline_assets.orchestration.operation_job import rollback_request
from resources.landing.folder import Folder
from resources.landing.store import LandingStore

NASTY = [
    "../../etc/passwd", "/etc/passwd", "..\\..\\x", "10001/../10002", "%2e%2e%2f", "file:///etc/shadow", "\\\\host\\share",
    "'; DROP TABLE tidemark_slices; --", "' OR '1'='1", "10001' UNION SELECT 1 --", "$(reboot)", "`reboot`", "${env:HOME}",
    "{{7*7}}", "http://169.254.169.254/", "\x1b]0;x\x07", "a\r\nb", "\0", "\u202e", "\ud83d", "１０００１", "10001 ", "010001",
    "1e5", "-1", "9223372036854775808", "NaN", "{", "[]", "null", "x" * 5_000, "[" * 5_000,
]  # fmt: skip
TEXT = st.one_of(
    st.sampled_from(NASTY), st.text(max_size=40), st.tuples(st.sampled_from(NASTY), st.text(max_size=5)).map("".join)
)
NAMES = sorted(Settings.model_fields)


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"TIDEMARK_CATALOG_URL": f"sqlite:///{tmp_path}/c.db", "TIDEMARK_LANDING_URL": f"{tmp_path}/landing"}
    for name, value in {**places, "TIDEMARK_PROJECTS": "10001", "DAGSTER_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "landing").mkdir()


many = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
few = settings(many, max_examples=8)


def _refusal(do: Callable[[], object]) -> str | None:
    """The sentence of the refusal, None if accepted."""
    said = None
    try:
        do()
    except TidemarkError as error:
        said = str(error)
    assert said is None or said.isprintable()
    return said


@many
@example("change_bounds", "[" * 5_000)
@given(st.sampled_from(NAMES), TEXT)
def test_a_setting_is_good_or_refused_by_name(name: str, text: str) -> None:
    """Scenario: one setting, by variable and by file, holds any text. Outcome: settings, or one sentence with its name."""
    with pytest.MonkeyPatch.context() as patch:
        with suppress(ValueError):  # no variable holds a zero byte or half a surrogate pair
            patch.setenv(f"TIDEMARK_{name.upper()}", text)
        said = _refusal(load_settings)
    # Of two related settings, the other one may be named.
    assert said is None or name in said.lower() or "golden" in said or "sparse" in said


@many
@given(TEXT)
def test_a_project_is_a_number_and_nothing_else(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.delenv("TIDEMARK_PROJECTS", raising=False)
    for known in ("projects", "sparse_projects"):
        try:
            found = Settings(**{"projects": (text,), known: (text,)}).projects
        except ValidationError:
            continue
        assert found == (str(int(text)),)
    with pytest.raises(SettingsError):
        Settings(projects=("10001",)).require_projects((f"{text}x",))


@many
@given(st.lists(TEXT, min_size=1, max_size=4).map("/".join), st.sampled_from(Source))
def test_no_key_leads_out_of_its_project(tmp_path: Path, key: str, source: Source) -> None:
    """Scenario: any text as an object's key. Outcome: no delivery, or one inside this project; folders stay inside too."""
    grammar = EXPORT_FORMAT.keys("{prefix}_{date}_{hour}_complete")
    found = grammar.parse(source, "10001", key, "", 1)
    if getattr(found, "batch", None) is not None:
        assert found.batch.project_id == "10001"
        assert ".." not in key
    place = Folder(tmp_path / "landing")
    (tmp_path / "secret").write_text("secret")
    store = LandingStore.from_settings(Settings(landing_url=str(place.root), projects=("10001",)))
    for asked in (key, f"{key}/../../secret", "../secret", str(tmp_path / "secret")):
        with pytest.raises((TidemarkError, OSError, ValueError)):
            store.open(asked, "etag").close()


@many
@given(st.dictionaries(TEXT, TEXT, min_size=1, max_size=2), st.sampled_from(AcceptanceKind))
def test_what_run_config_accepts_names_a_day_of_a_known_project(entries: dict[str, str], kind: AcceptanceKind) -> None:
    prefixed = {f"refined/events:{name}": reason for name, reason in entries.items()}
    for config in (entries, prefixed):
        found: list[tuple[str, Slice]] = []
        said = _refusal(lambda: found.extend(read_acceptances({kind: config}, KINDS, ("10001",), SHARED)))  # noqa: B023
        assert found or said
        assert all(isinstance(key, Slice) and key.project_id == "10001" for _, key in found)


@many
@given(TEXT)
def test_a_day_is_a_day_and_a_file_url_is_a_path_and_nothing_runs(text: str) -> None:
    days: list[date] = []
    said = _refusal(lambda: days.append(parse_day(text)))
    assert days or said
    found = local_path(f"file://{text}")
    assert found is None or found.is_absolute()


DAYS = st.one_of(st.sampled_from(["2026-02-02", "2026-02-03"]), TEXT)


@many
@given(DAYS, DAYS, TEXT, TEXT, st.lists(st.one_of(st.just("10001"), TEXT), max_size=2), st.lists(TEXT, max_size=2))
def test_run_config_of_a_job_is_a_request_or_refused(
    first: str, last: str, back_to: str, reason: str, projects: list[str], tables: list[str]
) -> None:
    """Scenario: run configs with any texts. Outcome: a request of known projects and days, or one sentence."""
    known = Settings(projects=("10001",))
    shared: dict[str, Any] = {"first": first, "last": last, "projects": projects}
    chosen = {**shared, "tables": tables, "reason": reason}
    for ask in (
        lambda: rollback_request(Rollback(**chosen, back_to=back_to), known, "run"),
        lambda: asked_for(Rebuild(**chosen), known, "who"),
        lambda: recovery_request(known, Recover(**shared)),
    ):
        made: list[Any] = []
        said = _refusal(lambda: made.append(ask()))  # noqa: B023
        assert (said is None) == (len(made) == 1), said
        assert all(set(request.projects) <= {"10001"} for request in made)


WORDS = (
    "status --from {}", "changes --since {}", "changes --since 2026-02-02 --table {}", "history {}",
    "history refined/events {}", "load --source {} --from 2026-02-02 --to 2026-02-02",
    "load --source regular --from {} --to 2026-02-02", "recover --from {} --to 2026-02-02T03 --dry-run",
    "recover --from 2026-02-02 --to 2026-02-02 --project x{} --dry-run",
    "rollback --from 2026-02-02 --to 2026-02-02 --back-to x{} --reason why", "exclude x{} --reason why", "reconcile --from x{}",
)  # fmt: skip


@few
@given(TEXT)
@pytest.mark.parametrize("words", WORDS)
def test_a_word_of_a_command_is_good_or_bad_usage(words: str, text: str) -> None:
    if "\0" in text or text.startswith("-"):
        return
    done = CliRunner().invoke(
        app, [word.replace("{}", text.encode("utf-8", "replace").decode()) for word in words.split()]
    )
    assert done.exit_code in (0, 1, 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, text, done.exception)
    assert "Traceback" not in done.output
    if done.exit_code == 1:
        assert "fix:" in done.output or "not" in done.output, done.output


@pytest.mark.parametrize(("query", "said"), [
    ("SELECT 1; DROP TABLE totals", "holds a `;`"), ("SELECT ';' ", "holds a `;`"),
    (r"SELECT E'\''; DROP TABLE totals --'", "holds a `;`"), ("DELETE FROM totals", "does not begin"),
    ("selection", "does not begin"), ("", "does not begin"), ("-- SELECT\nDROP TABLE x", "does not begin"),
    ("COPY totals TO PROGRAM 'sh'", "does not begin"),
])  # fmt: skip
def test_the_golden_query_is_one_question(query: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        require_one_question(query)
    asked = f"{query}{' ' if said[:5] == 'holds' else chr(10)}:first_day :last_day"
    with pytest.raises(ValueError, match=said):
        Settings(golden_url="sqlite:////x.db", golden_query=asked)
    for good in ("SELECT 1", " with x AS (SELECT 1)\nSELECT * FROM x; ", "(SELECT 1) UNION (SELECT 2)", "Values (1)"):
        require_one_question(good)
