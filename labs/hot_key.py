"""Skew and its remedies: a day with 60 % of its rows on one key and in one object, loaded with and without splitting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from benchmarks.skew import HOT_SHARE, NULL_SHARE, UNDIVIDED, divided, load_skewed, write_skewed
from labs.story import Story
from pipeline_assets.orchestration.health_page import SERIES, chart, short


@chart
def columns(axes: Axes, names: Sequence[str], series: Sequence[Sequence[float]]) -> None:
    """Grouped columns; each of `series` has one value per name."""
    width = 0.8 / len(series)
    for number, values in enumerate(series):
        places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(names))]
        drawn = axes.bar(places, values, width=0.94 * width, color=SERIES[number], linewidth=0)
        axes.bar_label(drawn, labels=[short(value) for value in values], padding=2)
    axes.set_ylim(0, 1.15 * max((max(values, default=0) for values in series), default=0) or 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set_xticks(range(len(names)), names)


def hot_key(work: Path, rows: int = 30_000) -> Story:
    """Load the same day both ways; measures tasks in rows, which a busy machine does not change."""
    write_skewed(work / "skew" / "landing", rows)
    loads = {
        name: load_skewed(work / "skew" / name, work / "skew" / "landing", f"skew_{name}", changes)
        for name, changes in (("undivided", UNDIVIDED), ("divided", divided(rows)))
    }
    steps = {name: {step["step"]: step for step in load["steps"]} for name, load in loads.items()}
    read = {name: of["read"]["measured"] for name, of in steps.items()}
    compare = {name: of["compare"]["forecast"] for name, of in steps.items()}
    even = compare["divided"]["total"] / compare["divided"]["tasks"]
    figures = {
        "read_before": read["undivided"]["ratio"], "read_after": read["divided"]["ratio"],
        "compare_before": compare["undivided"]["largest"] / even, "compare_after": compare["divided"]["largest"] / even,
        "is_same": float(loads["undivided"]["digests"] == loads["divided"]["digests"]),
        "forecast": steps["undivided"]["read"]["forecast"]["ratio"],
    }  # fmt: skip
    return Story(
        "hot_key",
        "Skew: the slowest task decides",
        (
            f"{HOT_SHARE:.0%} of a day's rows lie in one object and carry the same ids; {NULL_SHARE:.0%} have no `insert_id`, "
            "and are named by their `uuid`, so that no task gets them all. "
            f"Before it reads a byte the load forecasts {figures['forecast']:.1f} times the median for its largest task.",
            f"Objects left whole: the largest reading task has {read['undivided']['largest']:,.0f} rows, "
            f"{figures['read_before']:.1f} times the median. Read in parts: {read['divided']['largest']:,.0f} rows, "
            f"{figures['read_after']:.1f} times.",
            f"Rows that share a key, by the load's forecast: undivided, one task compares {compare['undivided']['largest']:,.0f} "
            "of them. With the rows of the hot key divided by their row ids, each beside "
            f"the best row of the day: {compare['divided']['largest']:,.0f}.",
            "The digests of all tables are the same both ways." if figures["is_same"] else "The digests DIFFER.",
        ),
        columns(
            "hot_key",
            "largest task to an even one, before and after",
            ["read objects", "compare keys (forecast)"],
            [
                [figures["read_before"], figures["compare_before"]],
                [figures["read_after"], figures["compare_after"]],
            ],
        ),
        ("objects and keys left whole: largest task to an even one", "divided"),
        figures,
    )
