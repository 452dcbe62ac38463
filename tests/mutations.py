"""Break the one line that upholds each law and see a test fail (`make mutations`, about twenty minutes).

Contains: the lines, and the tests that must fail without them.
Add here: the line of a new law.
Does not contain: the tests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline_assets.domain.settings import PROJECT_ROOT


@dataclass(frozen=True)
class Mutation:
    """A law without the line that upholds it."""

    law: int
    broken: str
    """What no longer holds, for people."""
    file: str
    line: str
    """Exactly once in the file."""
    instead: str
    test: str
    """Fails without the line."""


_LOST = "tests/scenarios/test_lost_catalog.py"
_ONE = "tests/unit/resources/test_one_lake.py"
_SPLIT = "tests/unit/operations/test_split_landing.py"
_LATE = "tests/scenarios/test_late_facts.py::test_a_fact_two_days_late_republishes_its_day_only"
MUTATIONS = (
    Mutation(
        1, "a slice built again is added to what is there", "resources/iceberg/lakehouse.py",
        "writer.overwrite(slices_condition(table, slices))", "writer.append()", _LATE,
    ),
    Mutation(
        1, "files of a slice built again are added to those that are there", "resources/iceberg/table_files.py",
        "self._commit(table, branch, old, change.files)", "self._commit(table, branch, (), change.files)", _LATE,
    ),
    Mutation(
        1, "a day without a snapshot is joined with the items of a later day", "pipeline_assets/load/staleness/as_of.py",
        "before = (day - timedelta(days=number)", "before = (day + timedelta(days=number)",
        "tests/unit/load/test_dimension_days.py::test_a_day_without_a_snapshot_is_handled_as_the_settings_say_and_never_by_a_later_one",
    ),
    Mutation(
        2, "a commit does not ask whether another one came first", "resources/iceberg/slice_change.py",
        "operation.validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()", "pass",
        "tests/scenarios/test_recovery.py::test_a_writer_that_comes_second_publishes_nothing",
    ),
    Mutation(
        2, "a difference is added to files that are gone", "resources/iceberg/slice_change.py",
        "operation.validateDataFilesExist(kept).validateDeletedFiles()", "operation.validateDeletedFiles()",
        "tests/scenarios/test_difference.py::test_files_that_vanish_meanwhile_are_noticed",
    ),
    Mutation(
        2, "a publish does not ask whether its inputs are what they were", "resources/publishing/recording.py",
        "    ledger.require_inputs(request.rests_on)", "    pass",
        "tests/spark/test_one_transaction.py::test_whatever_keeps_it_from_its_end_leaves_all_as_it_was",
    ),
    Mutation(
        3, "a backfill builds other tables than a daily load", "pipeline_assets/orchestration/jobs.py",
        "selection=dg.AssetSelection.assets(asset_key(RAW_TABLES[source]), *derived),",
        "selection=dg.AssetSelection.assets(asset_key(RAW_TABLES[source]), *derived[: 4 if source is Source.REGULAR else 1]),",
        "tests/unit/orchestration/test_graph.py::test_jobs_load_one_source_each",
    ),
    Mutation(
        4, "an event is filed on the day it was uploaded", "pipeline_assets/formats/amplitude/line_blocks.py",
        '"event_date": event_time.cast(pa.date32(), safe=False)',
        '"event_date": columns["server_upload_time"].cast(pa.date32(), safe=False)', _LATE,
    ),
    Mutation(
        5, "both sources read the same prefix", "pipeline_assets/domain/slices.py",
        'return project_id if self is Source.REGULAR else f"{project_id}-backfill"', "return project_id",
        "tests/unit/formats/test_object_keys.py",
    ),
    Mutation(
        6, "a slice that fails a check is published", "pipeline_assets/load/build/verdicts.py",
        "        elif key in failed:", "        elif key in failed and not decision.is_requested:",
        "tests/scenarios/test_bad_loads.py::test_a_bad_load_is_refused[halved]",
    ),
    Mutation(
        7, "the second part of a large object is read by nobody", "pipeline_assets/transforms/parse.py",
        "if block.first_offset * parts // max(1, size) == part:", "if block.first_offset * parts // max(1, size) == part == 0:",
        "tests/unit/transforms/test_write_objects.py::test_parts_of_an_object_are_the_object",
    ),
    Mutation(
        7, "a refused line is counted and kept nowhere", "pipeline_assets/transforms/parse.py",
        'yield batch_of_records(QUARANTINED, place, refused)', "pass",
        "tests/unit/transforms/test_parse.py::test_a_bad_line_costs_that_line_only",
    ),
    Mutation(
        7, "a row that is not what was parsed goes on", "pipeline_assets/transforms/refine_task.py",
        "        if at < 0:", "        if True:",
        "tests/unit/transforms/test_refine_files.py::test_a_row_that_is_not_what_was_parsed_is_named",
    ),
    Mutation(
        7, "any golden total agrees with what is published", "pipeline_assets/domain/golden.py",
        "is_good = abs(_EXACT.subtract(published, total.value)) <= within.of(total.value)", "is_good = True",
        "tests/unit/domain/test_golden.py::test_the_last_digit_of_a_long_number_counts",
    ),
    Mutation(
        7, "a golden total that does not agree is told to nobody", "resources/ledger/golden.py",
        "                    write_notice(connection, notice, stamp)", "                    pass",
        "tests/unit/resources/test_golden_record.py::test_a_reconciliation_tells_receivers_and_names_what_it_could_not_compare",
    ),
    Mutation(
        8, "a publication is not recorded", "pipeline_assets/load/build/rebuild.py",
        "        for record in published:", "        for record in published[1:]:", _LATE,
    ),
    Mutation(
        8, "a publication does not tell by which settings it was built", "resources/ledger/rows.py",
        '"settings": _sorted(record.settings),', '"settings": None,',
        "tests/unit/resources/test_ledger_rows.py::test_a_publication_keeps_what_it_was_built_from",
    ),
    Mutation(
        8, "a replay on other inputs counts as one", "pipeline_assets/inspection/replay/causes.py",
        "if not one.is_gone and not one.is_as_recorded:", "if False:",
        "tests/unit/inspection/test_replay_rules.py::test_the_first_cause_is_the_nearest_to_the_source",
    ),
    Mutation(
        9, "a slice with the same content is published again", "pipeline_assets/load/build/verdicts.py",
        "is_changed = audit.digest != prior.digest", "is_changed = True",
        "tests/scenarios/test_corrections.py::test_an_older_correction_alone_publishes_nothing",
    ),
    Mutation(
        10, "the ledger is believed without a look at the table", "pipeline_assets/load/ledger_sync.py",
        "        if known == Head(head) or ", "        if known is not None or ",
        "tests/scenarios/test_recovery.py::test_a_writer_that_comes_second_publishes_nothing",
    ),
    Mutation(
        10, "a publish does not ask what persons excluded meanwhile", "resources/ledger/writing.py",
        "            require_decisions(connection, changes)", "            pass",
        "tests/unit/resources/test_ledger_races.py::test_an_object_that_is_excluded_while_it_is_loaded_is_not_published",
    ),
    Mutation(
        10, "a swap does not ask whether another run has the rebuild by now", "resources/publishing/recording.py",
        "        request.alongside.require(connection)\n    steps", "        pass\n    steps",
        "tests/unit/resources/test_publishing.py::test_what_else_a_publish_is_about_is_asked_before_a_table_changes",
    ),
    Mutation(
        10, "a swap does not ask for what its slices were built from", "pipeline_assets/operations/rebuild/swap.py",
        "        rests_on=inputs,", "        rests_on={},",
        "tests/unit/operations/test_rebuild_swap.py::test_a_swap_rests_on_what_its_slices_were_built_from_and_judged_beside",
    ),
    Mutation(
        11, "maintenance and loads work on the files of another catalog", "resources/iceberg/lake_identity.py",
        "        if is_one_lake(settings, of_catalog, lambda: _outside(tables, settings, ours), purpose, ledger):",
        "        if True:",
        f"{_LOST}::test_another_catalog_touches_nothing_and_attach_brings_the_lake_back",
    ),
    Mutation(
        11, "a copy of a warehouse is loaded and maintained", "resources/iceberg/lake_identity.py",
        "        if resolved(named) != resolved(here):", "        if False:",
        f"{_ONE}::test_a_copy_may_be_looked_at_and_nothing_else",
    ),
    Mutation(
        11, "tables that lie in another warehouse are loaded and maintained", "resources/iceberg/lake_identity.py",
        "        if places:", "        if False:", f"{_ONE}::test_a_copy_with_a_mark_of_before_is_told_by_its_tables",
    ),
    Mutation(
        11, "another ledger than the lake's is believed", "resources/ledger/lake.py",
        "        if mark is not None and mark.ledger not in (None, own):", "        if False:",
        f"{_ONE}::test_another_ledger_is_refused_until_the_mark_names_it",
    ),
    Mutation(
        11, "a lake is taken without the name of its owner", "pipeline_assets/cli/attach.py",
        "    if take != name:", "    if False:", "tests/unit/cli/test_attach.py::test_a_lake_is_taken_by_the_name_of_its_owner",
    ),
    Mutation(
        11, "a table is created over files that lie there", "resources/iceberg/creation.py",
        "        if used is None:", "        if True:", f"{_LOST}::test_no_table_is_created_where_anything_lies",
    ),
    Mutation(
        11, "the files of another table count as orphans", "pipeline_assets/operations/leftovers.py",
        "    if foreign:", "    if False:", f"{_LOST}::test_orphans_that_history_does_not_explain_stay",
    ),
    Mutation(
        11, "any share of a table's files may be orphans", "pipeline_assets/operations/leftovers.py",
        "    if is_bulk(len(orphans), files, max_share):", "    if False:",
        f"{_LOST}::test_orphans_that_history_does_not_explain_stay",
    ),
    Mutation(
        11, "an object is deleted of which there is no equal copy", "resources/landing/move.py",
        "if copy.size_bytes != size or self.sha256(copy) != sha256:", "if False:",
        f"{_SPLIT}::test_a_target_with_other_bytes_is_refused_and_the_others_go_on",
    ),
    Mutation(
        11, "an object is deleted in another version than the one that was copied", "resources/landing/move_places.py",
        "if present.is_link or present.etag != upload.etag:", "if False:",
        f"{_SPLIT}::test_what_changes_before_the_delete_stays",
    ),
)  # fmt: skip


@contextmanager
def a_copy() -> Iterator[Path]:
    """The project as git knows it, with its jars, in a folder of its own."""
    named = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=PROJECT_ROOT, capture_output=True, check=True
    )
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        for name in named.stdout.decode().splitlines():
            if (PROJECT_ROOT / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(PROJECT_ROOT / name, Path(folder) / name)
        (Path(folder) / ".jars").symlink_to(PROJECT_ROOT / ".jars")
        yield Path(folder)


def outcome(copy: Path, test: str) -> tuple[int, str]:
    """pytest's exit code, and its line about the first failure."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", "--show-capture=no", test],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
    return run.returncode, told[0].removeprefix("FAILED ") if told else "\n".join(run.stdout.splitlines()[-3:])


def main() -> int:
    """Every test passes as it is and fails without its line; exits 1 where one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("laws", nargs="*", type=int, help="only these")
    chosen = parser.parse_args()
    console = Console(width=200)
    page = Table("law", "broken", "file", "what fails", title="mutations")
    survived = 0
    mutations = [mutation for mutation in MUTATIONS if not chosen.laws or mutation.law in chosen.laws]
    with a_copy() as copy:
        for test in dict.fromkeys(mutation.test for mutation in mutations):
            code, told = outcome(copy, test)
            console.print(f"as it is: exit {code}, {test}", highlight=False)
            assert code == 0, told
        for mutation in mutations:
            path = copy / mutation.file
            whole = path.read_text("utf-8")
            assert whole.count(mutation.line) == 1, mutation
            path.write_text(whole.replace(mutation.line, mutation.instead), "utf-8")
            code, told = outcome(copy, mutation.test)
            path.write_text(whole, "utf-8")
            is_killed = code == 1 and "::" in told
            survived += not is_killed
            page.add_row(str(mutation.law), mutation.broken, mutation.file, told if is_killed else f"SURVIVED: {told}")
            console.print(f"law {mutation.law}: exit {code}, {told}", highlight=False)
    console.print(page)
    return 1 if survived else 0


if __name__ == "__main__":
    raise SystemExit(main())
