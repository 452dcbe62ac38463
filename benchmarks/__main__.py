"""`make bench`: every contender, interleaved, in one run on one machine; medians, ratios and memory as table, JSON and chart."""

from __future__ import annotations

import argparse

from benchmarks.contenders import CONTENDERS
from benchmarks.measure import Measured, measure
from benchmarks.report import report
from benchmarks.workload import five_days_and_one


def main() -> int:
    """Run all rounds and report them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events-per-day", type=int, default=200_000)
    parser.add_argument("--contenders", default="".join(CONTENDERS), help="letters, such as abc")
    chosen = parser.parse_args()
    stages = five_days_and_one(chosen.events_per_day)
    warm_up = five_days_and_one(2_000)
    measured: list[Measured] = []
    for number in range(chosen.rounds):
        # Rotate the order each round, so that no contender always follows the same one.
        first = number % len(chosen.contenders)
        contenders = chosen.contenders[first:] + chosen.contenders[:first]
        measured.extend(measure(contender, stages, warm_up) for contender in contenders)
    report(measured, stages)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
