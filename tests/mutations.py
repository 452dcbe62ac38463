"""Break the one line that upholds each law and see a test fail (`make mutations`, about twenty minutes)."""

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
    law: int
    """0: a promise of SECURITY.md."""
    broken: str
    """The broken promise."""
    file: str
    line: str
    """Exactly once in the file."""
    instead: str
    test: str
    """Fails without the line."""


_RUN = "tests/unit/orchestration/test_run_config.py"
_LOST = "tests/scenarios/test_lost_catalog.py"
_ONE = "tests/unit/resources/test_one_lake.py"
_SPLIT = "tests/unit/operations/test_split_landing.py"
_WHOLE = "tests/unit/transforms/test_whole_objects.py"
_UPKEEP = "tests/scenarios/test_maintenance.py"
_LATE = "tests/scenarios/test_standing.py::test_where_days_stand"
_MEANWHILE = "tests/spark/test_one_transaction.py::test_a_commit_of_one_table_asks_what_others_did_to_its_slice"
_RECOVER = "tests/unit/operations/test_recover.py"
_BATCHES = "tests/unit/load/test_batches.py"
_NEVER_CAME = (
    "tests/unit/load/test_finality.py"
    "::test_a_day_whose_hours_never_came_is_provisional_and_bounded_until_they_come_or_are_let_go"
)
_WHOLE_DAY = "tests/unit/load/test_batches.py::test_a_day_is_empty_by_its_markers_whichever_side_is_asked"
_FATES = "tests/unit/transforms/test_contest.py::test_fates_are_those_of_the_pure_rule"
MUTATIONS = [Mutation(*one) for one in (
    (5, "a day is judged by the markers of one side alone", "pipeline_assets/load/deliveries/plan.py",
     "return len(self.hours_marked | self.hours_held | self.hours_elsewhere) == HOURS_A_DAY",
     "return len(self.hours_marked) == HOURS_A_DAY", _WHOLE_DAY),
    (0, "a run's config is not looked at", "pipeline_assets/definitions.py",
     "in refusals(plan_context.run_config)", "in ()",
     f"{_RUN}::test_a_variable_is_refused_before_a_class_of_config_sees_its_value"),
    (0, "resources take run config", "pipeline_assets/definitions.py",
     "return made.configured(field.default_value if field and field.default_provided else {}, config_schema={})",
     "return made", f"{_RUN}::test_the_schema_of_a_job_has_no_field_that_is_not_ours"),
    (0, "a reason is stored with the secret in it", "pipeline_assets/domain/plain_text.py",
     "text = bounded(scrubbed(text), most)\n    return bounded(\"\"",
     "text = bounded(text, most)\n    return bounded(\"\"",
     "tests/unit/domain/test_secrets.py::test_what_is_stored_holds_no_secret"),
    (0, "a JVM starts on jars that nobody verified", "resources/spark/session.py", "    require_pinned(settings)\n", "",
     "tests/unit/resources/test_spark.py::test_no_jvm_starts_on_a_jar_that_somebody_replaced"),
    (0, "a chat reads markup in a reason", "pipeline_assets/operations/notices.py", '"text": as_chat(bounded(',
     '"text": str(bounded(',
     "tests/unit/resources/test_golden.py::test_what_a_file_of_totals_says_begins_no_markup_in_a_chat"),
    (0, "another distribution's files are imported as ours", "pipeline_assets/__init__.py", "if name in files and",
     "if not files and",
     "tests/unit/test_own_packages.py::test_another_distribution_that_installs_into_our_packages_is_named_with_both_places"),
    (0, "figures and page are everybody's to read", "pipeline_assets/domain/machine.py",
     "        draft.replace(target)", "        draft.chmod(0o644)\n        draft.replace(target)",
     "tests/unit/inspection/test_metrics.py::test_figures_and_page_have_the_rights_that_the_umask_leaves"),
    (1, "a slice built again is added to what is there", "resources/iceberg/lakehouse.py",
     "placed.writeTo(target).overwrite(metadata.slices_condition(table, slices))", "placed.writeTo(target).append()",
     "tests/scenarios/test_extending.py::test_an_aggregate_of_a_users_own"),
    (1, "files of a slice built again are added to those that are there", "resources/iceberg/staging.py",
     "self._commit(table, java, branch, old, change.files)", "self._commit(table, java, branch, (), change.files)",
     "tests/scenarios/test_deliveries.py::test_deliveries_come_again"),
    (1, "a day without a snapshot is joined with the items of a later day", "pipeline_assets/load/staleness/as_of.py",
     "before = (day - timedelta(days=number)", "before = (day + timedelta(days=number)",
     "tests/unit/load/test_dimension_days.py::test_a_day_without_a_snapshot_is_handled_as_the_settings_say_and_never_by_a_later_one"),
    (2, "a commit does not ask whether another one came first", "resources/iceberg/slice_changes.py",
     "operation.validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()", "pass", _MEANWHILE),
    (2, "a difference is added to files that are gone", "resources/iceberg/slice_changes.py",
     "operation.validateDataFilesExist(kept).validateDeletedFiles()", "operation.validateDeletedFiles()", _MEANWHILE),
    (2, "a publish does not ask whether its inputs are what they were", "resources/publishing.py",
     "    require_inputs(connection, request.rests_on)", "    pass",
     "tests/spark/test_one_transaction.py::test_whatever_keeps_it_from_its_end_leaves_all_as_it_was"),
    (7, "a value that nothing rests on costs its event", "pipeline_assets/formats/amplitude/lines.py",
     "if name in columns.NEEDED_COLUMNS:", "if name is not None:",
     "tests/unit/formats/test_event_lines.py::test_a_value_that_nothing_rests_on_is_null_and_its_text_is_kept"),
    (7, "the text of a value that could not be read is dropped", "pipeline_assets/formats/amplitude/lines.py",
     'extra[f"${name}" if name in extra else name] = text', 'extra.setdefault(name, text)',
     "tests/unit/formats/test_event_lines.py::test_a_kept_text_takes_no_delivered_key_and_none_takes_its_own"),
    (7, "values that could not be read are not counted", "pipeline_assets/transforms/parse.py",
     'reasons.update(f"{UNREADABLE}{column}" for column in parsed.unreadable)', "pass",
     "tests/unit/transforms/test_parse.py::test_values_that_cannot_be_read_are_counted_by_column_beside_refused_lines"),
    (7, "a time that could not be read decides unseen", "pipeline_assets/domain/identity.py",
     "return is_close and (row.unread or self.by.unread) is not None", "return False",
     "tests/unit/domain/test_identity.py"
     "::test_an_unread_time_decides_only_between_unequal_rows_that_the_first_rank_leaves_open"),
    (7, "a load does not count what a time that could not be read decided", "pipeline_assets/transforms/contest.py",
     "is_close & (unread | unread[better])", "is_close & unread", _FATES),
    (7, "events that share half of a hash are one", "pipeline_assets/transforms/contest.py",
     "group_numbers(*(numbers_of(rows[name]) for name in KEY))", "group_numbers(numbers_of(rows[KEY[0]]))", _FATES),
    (7, "an event loses to one beyond the window", "pipeline_assets/transforms/contest.py",
     "is_near = numbers[shift:] - numbers[:-shift] <= window_days",
     "is_near = numbers[shift:] - numbers[:-shift] <= window_days + 1", _FATES),
    (7, "an equal row does not count with the rank of the greatest", "pipeline_assets/transforms/contest.py",
     "ranks = greatest_of(own_ranks, equal)", "ranks = own_ranks", _FATES),
    (9, "a row that is delivered again is written again", "pipeline_assets/transforms/refine_task.py",
     "is_new: Mask = ~np.isin(hashes, held)", "is_new: Mask = np.ones(len(hashes), dtype=np.bool_)",
     "tests/unit/transforms/test_slice_difference.py::test_the_difference_makes_the_same_slice"),
    (7, "rows of a hot key are compared with those of one task alone", "pipeline_assets/transforms/contest_tasks.py",
     "if self.guests is not None and part >= self.ranges.usual:", "if False:",
     "tests/unit/transforms/test_contest.py::test_parts_have_the_outcome_of_the_whole"),
    (4, "a slice counts as unchanged where content alone decides between days",
     "pipeline_assets/transforms/contest_tasks.py",
     "return with_tie(str(self.digest)) if self.is_tied else str(self.digest)", "return str(self.digest)",
     "tests/unit/transforms/test_contest.py::test_digests_are_those_of_all_pairs"),
    (7, "a file that is no export passes for a few bad lines", "pipeline_assets/transforms/object_text.py",
     "(look := _foreign_look(text, max_line_bytes)) is not None", "False",
     f"{_WHOLE}::test_an_object_without_an_event_of_the_vendor_is_refused_by_its_look"),
    (7, "one odd event refuses a quiet hour", "pipeline_assets/formats/base.py", "least_own_keys: int = 2",
     "least_own_keys: int = 12", f"{_WHOLE}::test_an_hour_of_one_line_of_the_vendor_is_never_refused_for_it"),
    (7, "a text that was cut before it was compressed is whole", "pipeline_assets/transforms/object_text.py",
     "        _require_end(text, max_line_bytes)\n", "", f"{_WHOLE}::test_a_cut_last_line_refuses_its_object"),
    (7, "an hour is complete beside an object that nobody can place", "pipeline_assets/load/deliveries/plan.py",
     "bool(self.unplaced or (", "bool((",
     "tests/unit/load/test_batches.py::test_an_hour_with_an_object_that_cannot_be_placed_is_not_complete"),
    (7, "quarantined lines of an accepted day are not told", "pipeline_assets/domain/checks.py",
     "True, figures.told_quarantined, figures", "True, figures", "tests/unit/domain/test_checks.py"
     "::test_quarantined_lines_are_said_with_their_reasons_in_words_and_never_as_a_count_alone"),
    (8, "delete files of another program stay on the slices that are published again",
     "resources/iceberg/slice_changes.py", "operation.removeDeletes(delete)", "pass",
     "tests/scenarios/test_foreign_deletes.py::test_deleted_rows_come_back_from_the_recorded_files_and_are_counted"),
    (8, "files are published again by their names, whatever they hold", "pipeline_assets/load/ledger_sync.py",
     "proven = {key for key in change.slices if whole.get(key, EMPTY) == recorded[key].digest}",
     "proven = set(change.slices)", "tests/scenarios/test_foreign_deletes.py"
     "::test_other_files_are_replaced_from_inputs_and_landing_and_a_day_that_landing_lost_is_refused"),
    (10, "a delete file of another program is no change of a slice", "resources/iceberg/metadata.py",
     "sorted(self.paths | self.deletes)", "sorted(self.paths)",
     "tests/unit/resources/test_at_rest.py::test_a_slice_with_a_delete_file_is_another_state_than_its_data_files_alone"),
    (7, "a slice of raw comes back with the rows of some of its batches", "pipeline_assets/load/deliveries/accept.py",
     "if not holding[key] <= able}", "if holding[key].isdisjoint(able)}",
     "tests/unit/load/test_decide.py::test_a_lost_slice_of_raw_is_whole_only_with_all_its_batches_and_a_batch_only_with_all_its_slices"),
    (7, "a build reads a slice of which a data file is gone", "pipeline_assets/load/staleness/decide.py",
     "            if losses:", "            if False:",
     "tests/unit/load/test_decide.py::test_what_would_read_a_lost_file_waits_and_what_is_up_to_date_stays"),
    (7, "rows that another program deleted and landing lost are forgotten", "pipeline_assets/load/deliveries/batch.py",
     "if not is_kept or plan.recorded[key].is_damaged)", "if not is_kept)",
     "tests/unit/load/test_batches.py::test_past_the_horizon_an_object_that_raw_lost_rows_of_is_missing_unless_landing_has_it"),
    (2, "a publish that was killed between two tables is attached by half", "resources/iceberg/catalog_at_rest.py",
     "if name in states and _lacks(states[name], head)}", "if name not in states}",
     "tests/unit/resources/test_at_rest.py::test_a_publish_counts_where_every_table_that_it_names_showed_it"),
    (3, "a backfill builds other tables than a daily load", "pipeline_assets/orchestration/specs.py",
     "backfill: (RAW_TABLES[Source.BACKFILL], *derived),", "backfill: (RAW_TABLES[Source.BACKFILL], *derived[:1]),",
     "tests/unit/orchestration/test_graph.py::test_jobs_load_one_source_each"),
    (4, "an event is filed on the day it was uploaded", "pipeline_assets/formats/amplitude/line_blocks.py",
     '"event_date": columns[EVENT_TIME].cast(pa.date32(), safe=False)',
     '"event_date": columns["server_upload_time"].cast(pa.date32(), safe=False)', _LATE),
    (5, "both sources read the same prefix", "pipeline_assets/domain/slices.py",
     'return project_id if self is Source.REGULAR else f"{project_id}-backfill"', "return project_id",
     "tests/unit/formats/test_object_keys.py"),
    (6, "a slice that fails a check is published", "pipeline_assets/load/build/verdicts.py",
     "        if key in waiting or key in failed:",
     "        if key in waiting or (key in failed and not decision.is_requested):",
     "tests/scenarios/test_bad_loads.py::test_changes_of_closed_days"),
    (7, "any object of its hour lets one go that landing lost", "pipeline_assets/load/deliveries/plan.py",
     "settings), \"\") > gone.recorded_at", "settings), \"\") >= gone.recorded_at",
     "tests/unit/load/test_batches.py::test_what_was_delivered_after_an_object_lets_it_go"),
    (7, "the same bytes under another etag are a new delivery", "resources/ledger/writing.py",
     "if one.recorded_at == THIS_LOAD", "if one.recorded_at != THIS_LOAD",
     "tests/unit/resources/test_ledger_rows.py::test_the_same_bytes_keep_the_moment_of_their_delivery"),
    (7, "any share of a batch's rows may vanish", "pipeline_assets/load/deliveries/publish.py",
     "            if is_much:", "            if is_much and of is None:",
     "tests/unit/load/test_batches.py::test_the_share_of_rows_that_vanished_is_bounded"),
    (7, "a bag delivered as text has no properties", "pipeline_assets/formats/amplitude/lines.py",
     "if text[0] != '\"' or name not in columns.BAG_COLUMNS:", "if text:",
     "tests/unit/formats/test_event_lines.py::test_a_bag_delivered_as_text_is_the_bag"),
    (7, "a computed sale is revenue beside the sale", "pipeline_assets/transforms/fold.py", " & ~repeats)", ")",
     "tests/unit/domain/test_revenue.py::test_what_repeats_the_revenue_of_another_event_neither_has_nor_claims_any"),
    (7, "a merged user counts twice", "pipeline_assets/transforms/fold.py", 'pc.coalesce(*ids, rows["amplitude_id"])',
     'rows["amplitude_id"]', "tests/scenarios/test_corrections.py::test_corrections_fold_in"),
    (10, "other event types that repeat revenue leave days as they are", "pipeline_assets/tables/aggregates.py",
     '        "event_types_without_revenue",\n', "",
     "tests/unit/domain/test_settings.py::test_which_events_repeat_revenue_is_recorded_and_is_other_code"),
    (7, "the second part of a large object is read by nobody", "pipeline_assets/transforms/parse.py",
     "if block.first_offset * parts // max(1, size) == part:",
     "if block.first_offset * parts // max(1, size) == part == 0:",
     "tests/unit/transforms/test_write_objects.py::test_parts_of_an_object_are_the_object"),
    (7, "a refused line is counted and kept nowhere", "pipeline_assets/transforms/parse.py",
     'yield object_text.refused_of(delivery, refused)', "pass",
     "tests/unit/transforms/test_parse.py::test_a_bad_line_costs_that_line_only"),
    (7, "a row that is not what was parsed goes on", "pipeline_assets/transforms/refine_task.py", "        if at < 0:",
     "        if True:", "tests/unit/transforms/test_refine_files.py::test_a_row_that_is_not_what_was_parsed_is_named"),
    (7, "any golden total agrees with what is published", "pipeline_assets/domain/golden.py",
     "is_good = abs(_EXACT.subtract(published, total.value)) <= tolerated", "is_good = True",
     "tests/unit/domain/test_golden.py::test_the_last_digit_of_a_long_number_counts"),
    (7, "a golden total that does not agree is told to nobody", "resources/ledger/outbox.py",
     '                write_notice(connection, notice, {"run_id": run_id, "recorded_at": now})', "                pass",
     "tests/unit/resources/test_golden.py::test_a_reconciliation_tells_receivers_and_names_what_it_could_not_compare"),
    (7, "no data is believed of keys that brought none", "pipeline_assets/operations/recover.py",
     "of.doubt = error or self._unproven(of)", "pass",
     f"{_RECOVER}::test_without_an_hour_that_raw_holds_no_data_is_not_recorded_unless_the_run_brings_data"),
    (7, "an archive of nothing shows that keys are a project's", "pipeline_assets/operations/recover.py",
     "            if not archive.members:\n", "            if answer.file is None:\n",
     f"{_RECOVER}::test_an_archive_without_a_whole_hour_is_believed_no_more_than_no_data"),
    (7, "a marker from before a claim outweighs it", "pipeline_assets/load/deliveries/batch.py",
     "if is_open or hour not in hours", "if hour not in hours",
     f"{_RECOVER}::test_an_hour_that_was_asked_for_again_and_is_half_there_is_not_taken_for_whole"),
    (7, "rows that an unreadable version takes are no loss", "pipeline_assets/load/deliveries/publish.py",
     "rows, keys = 0, (*plan.let_go, *broken)", "rows, keys = 0, plan.let_go",
     f"{_BATCHES}::test_rows_that_an_unreadable_version_takes_are_bounded_too"),
    (7, "an hour that lost rows was read anew if anything of it came later",
     "pipeline_assets/load/deliveries/publish.py", "if all(record.recorded_at > last",
     "if any(record.recorded_at > last", f"{_BATCHES}::test_an_hour_that_an_earlier_load_read_anew_loses_nothing"),
    (7, "a denied hour discredits no other", "pipeline_assets/operations/recover.py",
     "archive.bad_hours.get(hour) or doubt:", "archive.bad_hours.get(hour) or (planned.has_rows and doubt):",
     f"{_RECOVER}::test_one_contradicted_hour_discredits_the_whole_answer"),
    (9, "a refusal is halved though halving does not help", "pipeline_assets/operations/recover.py",
     "refusals += isinstance(error, errors.ExportRefusedError)", "refusals += 0",
     f"{_RECOVER}::test_a_refusal_ends_a_day_and_three_days_a_project"),
    (8, "a drill looks at the last recovery alone", "pipeline_assets/drill/scenarios.py",
     "expected = _landing(place, project)", "expected: dict[str, bytes] = {}",
     "tests/unit/drill/test_drill.py::test_a_drilled_recovery_is_survived_and_what_is_lost_is_told"),
    (7, "a deadline makes hours that never came fine", "pipeline_assets/load/staleness/finality.py",
     "return True, not any(is_short(facts.batches, batch) for batch in own)", "return True, True", _NEVER_CAME),
    (8, "a day that lacks hours may change by any number", "pipeline_assets/domain/records.py",
     "self.is_final or self.baseline is not None", "self.is_final", _NEVER_CAME),
    (8, "any recovered hour lifts the growth bound", "pipeline_assets/operations/recover.py",
     "new if planned.is_gap else {}", "new",
     f"{_RECOVER}::test_what_is_written_for_an_hour_that_is_told_to_be_missing_is_on_record"),
    (8, "bytes that come again lift the growth bound again", "resources/ledger/writing.py",
     "stamp if one.recorded_at == THIS_LOAD else {}", "stamp",
     f"{_RECOVER}::test_what_is_written_for_an_hour_that_is_told_to_be_missing_is_on_record"),
    (8, "a recovered day may fall back to what it was", "pipeline_assets/domain/changes.py",
     "kept.grown(brought, after, now) if brought else kept", "kept",
     "tests/unit/domain/test_checks.py::test_what_a_recovery_brought_is_part_of_the_baseline_since"),
    (8, "a publication is not recorded", "pipeline_assets/load/build/rebuild.py",
     "        if publication is None or not one.is_changed:",
     "        if publication is None or not one.is_changed or not changes.slices:", _LATE),
    (8, "a publication does not tell by which settings it was built", "resources/ledger/schema.py",
     "Mapping[str, Any] | None: (lambda stored: stored, _sorted)",
     "Mapping[str, Any] | None: (lambda stored: stored, lambda _: None)",
     "tests/unit/resources/test_ledger_rows.py::test_a_publication_keeps_what_it_was_built_from"),
    (8, "a replay on other inputs counts as one", "pipeline_assets/inspection/replay_result.py",
     "if one.measured not in (None, one.recorded)", "if False",
     "tests/unit/inspection/test_replay_rules.py::test_the_first_cause_is_the_nearest_to_the_source"),
    (9, "eight late rows have two thousand copied", "pipeline_assets/transforms/refine_task.py",
     "at = np.searchsorted(self.ends, _days(rows))", "at = np.zeros(rows.num_rows, dtype=np.int64)",
     "tests/unit/transforms/test_slice_difference.py"
     "::test_ten_late_events_read_wide_only_what_loses_and_copy_only_late_rows"),
    (9, "a slice with the same content is published again", "pipeline_assets/load/build/verdicts.py",
     "is_changed = audit.digest != prior.digest", "is_changed = True",
     "tests/scenarios/test_corrections.py::test_corrections_fold_in"),
    (10, "the ledger is believed without a look at the table", "pipeline_assets/load/ledger_sync.py",
     "        if known == Head(head):", "        if known is not None:",
     "tests/scenarios/test_recovery.py::test_a_writer_that_comes_second_publishes_nothing"),
    (10, "a publish does not ask what persons excluded meanwhile", "resources/ledger/writing.py",
     "            require_decisions(connection, changes, decided)", "            pass",
     "tests/unit/resources/test_ledger_races.py::test_an_object_that_is_excluded_while_it_is_loaded_is_not_published"),
    (10, "a swap does not ask whether another run has the rebuild by now", "resources/publishing.py",
     "        request.alongside.require(connection)\n    steps", "        pass\n    steps",
     "tests/unit/resources/test_publishing.py::test_what_else_a_publish_is_about_is_asked_before_a_table_changes"),
    (10, "a swap does not ask for what its slices were built from", "pipeline_assets/operations/rebuild_swap.py",
     "        rests_on=inputs,", "        rests_on={},",
     "tests/unit/operations/test_rebuild_swap.py::test_a_swap_rests_on_what_its_slices_were_built_from_and_judged_beside"),
    (11, "maintenance and loads work on the files of another catalog", "resources/iceberg/lake_identity.py",
     "        if is_one_lake(settings, of_catalog, outside, purpose, ledger):", "        if True:",
     f"{_LOST}::test_another_catalog_touches_nothing_and_attach_brings_the_lake_back"),
    (11, "a copy of a warehouse is loaded and maintained", "resources/iceberg/lake_identity.py",
     "        if resolved(named) != resolved(here):", "        if False:",
     f"{_ONE}::test_a_copy_may_be_looked_at_and_nothing_else"),
    (11, "tables that lie in another warehouse are loaded and maintained", "resources/iceberg/lake_identity.py",
     "        if places:", "        if False:", f"{_ONE}::test_a_copy_with_a_mark_of_before_is_told_by_its_tables"),
    (11, "another ledger than the lake's is believed", "resources/ledger/store.py",
     "        if mark is not None and mark.ledger not in (None, ids.get(_OWN)):", "        if False:",
     f"{_ONE}::test_another_ledger_is_refused_until_the_mark_names_it"),
    (11, "a lake is taken without the name of its owner", "pipeline_assets/cli/run.py", "    if take != name:",
     "    if False:", "tests/unit/cli/test_bad_usage.py::test_a_lake_is_taken_by_the_name_of_its_owner"),
    (11, "a table is created over files that lie there", "resources/iceberg/upkeep.py", "        if used is None:",
     "        if True:", f"{_LOST}::test_no_table_is_created_where_anything_lies"),
    (11, "the files of another table count as orphans", "pipeline_assets/operations/maintenance.py", "    if foreign:",
     "    if False:", f"{_LOST}::test_orphans_that_history_does_not_explain_stay"),
    (11, "any share of a table's files may be orphans", "pipeline_assets/operations/maintenance.py",
     "    if is_bulk(len(orphans), len(data), max_share):", "    if False:",
     f"{_LOST}::test_orphans_that_history_does_not_explain_stay"),
    (11, "a file of any name below a table counts as an orphan", "pipeline_assets/operations/maintenance.py",
     "    owned = {name for name in unknown if is_written(name, below.table_uuid)}",
     "    owned = set(unknown)", f"{_UPKEEP}::test_leftovers_go_and_what_rollback_needs_stays"),
    (11, "files older than a day go while the step that wrote them goes on",
     "pipeline_assets/operations/maintenance.py", "    youngest = least_age(runtime.ledger.processes.live_ages())",
     "    youngest = YOUNGEST", f"{_UPKEEP}::test_a_step_of_days_keeps_the_files_it_wrote"),
    (11, "the tables of a verify or a drill go while it works", "pipeline_assets/inspection/scratch.py",
     "or process.life(sight(process.identity)) is Life.RUNNING:", ":",
     "tests/unit/inspection/test_scratch.py::test_what_a_dead_command_left_goes_and_nothing_else"),
    (2, "a process that stands still inside its publish keeps all others out", "resources/ledger/engine.py",
     """        cursor.execute(f"SELECT set_config('{limit}',""", """        str(f"SELECT set_config('{limit}',""",
     "tests/unit/resources/test_ledger_engine.py"
     "::test_a_process_that_stands_still_in_its_transaction_holds_it_for_a_while_and_writes_nothing"),
    (2, "SQLite lies where two kernels write to it", "pipeline_assets/config.py",
     "if kind is not None and kind not in settings.sqlite_on_shared_disk:", "if False:",
     "tests/unit/domain/test_settings.py::test_sqlite_on_a_disk_of_several_machines_is_refused_unless_it_is_named"),
    (11, "an object is deleted of which there is no equal copy", "pipeline_assets/operations/split_landing.py",
     "if not is_equal:", "if False:", f"{_SPLIT}::test_a_target_with_other_bytes_is_refused_and_the_others_go_on"),
    (11, "an object is deleted in another version than the one that was copied", "resources/landing/store.py",
     "if present is not None and (present.etag, present.is_link) != (listed.etag, False):", "if False:",
     f"{_SPLIT}::test_what_changes_before_the_delete_stays"),
)]  # fmt: skip


@contextmanager
def a_copy() -> Iterator[Path]:
    """A folder with git's files of the project and its jars."""
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
    """Every test passes as is and fails without its line; exits 1 where one survives."""
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
