"""The health page: one file that needs only a browser. It imports no Dagster, so that the CLI can write it without.

Contains: tiles, charts, calendar, and what else the template asks for.
Add here: another figure that is drawn; its text goes into inspection/templates/health.html.
Does not contain: the figures (inspection/health/).
"""
