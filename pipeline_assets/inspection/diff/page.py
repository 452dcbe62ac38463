"""A difference as a small self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline_assets.domain.plain_text import as_html
from pipeline_assets.inspection.diff.difference import Difference, Sample

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1b2733; }
h1 { font-size: 1.4rem; margin-bottom: .2rem } h2 { font-size: 1.05rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% }
td, th { padding: .3rem .6rem; border-bottom: 1px solid #dde3ea; text-align: left; vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.bar { display: flex; height: 1.4rem; border-radius: 4px; overflow: hidden; background: #eef1f5 } .bar span { display: block }
.kept { background: #9fb3c8 } .added { background: #3c9d6b } .removed { background: #c6493c } .changed { background: #d9a21b }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .3rem }
.bad { color: #a3271b; font-weight: 600 } .good { color: #23704a; font-weight: 600 } .quiet { color: #64748b }
code { background: #f3f5f8; padding: 0 .25rem; border-radius: 3px; overflow-wrap: anywhere }
"""
_POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"""
"""A second defence: even wrongly escaped text cannot load or run anything."""


def page_of(difference: Difference) -> str:
    """The whole page as HTML, including its style."""
    found = difference
    kind = ("good" if found.evaluation.is_passed else "bad") if found.is_bounded else "quiet"
    verdict = f'<p class="{kind}">{as_html(found.verdict)}</p><p>{as_html(found.evaluation.hint or "")}</p>'
    title = as_html(f"{found.table} {found.key}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">{_POLICY}<title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>on record: {as_html(found.standing)}<br>a load of the day: {as_html(found.todo)}</p>{verdict}"
        f"<h2>Figures</h2>{_measures(found)}<h2>Keys</h2>{_bar(found)}{_keys(found)}"
        f"<h2>Samples</h2>{_samples(found.samples)}"
        f'<p class="quiet">published <code>{found.published}</code><br>proposed <code>{found.proposed}</code></p></html>\n'
    )


def write_page(difference: Difference, folder: Path) -> Path:
    """Write the page to a file in the folder, which is created if missing; returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    key = difference.key
    path = folder / f"{difference.table.replace('/', '.')}_{key.event_date}_{key.project_id}.html"
    path.write_text(page_of(difference), "utf-8")
    return path


def _measures(found: Difference) -> str:
    rows = "".join(
        f'<tr><td>{as_html(name)}</td><td class="n">{before:,.12g}</td><td class="n">{after:,.12g}</td>'
        f'<td class="n">{after - before:+,.12g}</td></tr>'
        for name, (before, after) in found.measures.items()
    )
    head = '<tr><th></th><th class="n">published</th><th class="n">proposed</th><th class="n">change</th></tr>'
    return f"<table>{head}{rows}</table>"


def _parts(found: Difference) -> Mapping[str, Mapping[str, int]]:
    keys = found.keys
    return {"kept": {"": keys.kept}, "changed": keys.changed, "removed": keys.removed, "added": keys.added}


def _bar(found: Difference) -> str:
    totals = {name: sum(causes.values()) for name, causes in _parts(found).items()}
    whole = sum(totals.values()) or 1
    parts = "".join(
        f'<span class="{name}" style="width:{100 * count / whole:.3f}%"></span>'
        for name, count in totals.items()
        if count
    )
    return f'<div class="bar">{parts}</div>'


def _keys(found: Difference) -> str:
    told = {"kept": "equal", "changed": "different", "removed": "only published", "added": "only proposed"}
    rows = "".join(
        f'<tr><td><span class="key {name}"></span>{told[name]}</td><td>{as_html(cause)}</td><td class="n">{count:,}</td></tr>'
        for name, causes in _parts(found).items()
        for cause, count in causes.items()
    )
    return f"<table>{rows}</table>"


def _samples(samples: Iterable[Sample]) -> str:
    rows = "".join(
        f'<tr><td><span class="key {sample.change}"></span>{sample.change}<br><span class="quiet">{as_html(sample.cause)}'
        f"</span></td><td>{as_html(sample.name)}</td><td>{_values(sample)}</td></tr>"
        for sample in samples
    )
    return f"<table>{rows}</table>" if rows else '<p class="quiet">none</p>'


def _values(sample: Sample) -> str:
    return "<br>".join(
        f"{as_html(column)}: <code>{as_html(str(before))}</code> → <code>{as_html(str(after))}</code>"
        for column, (before, after) in sample.values.items()
    )
