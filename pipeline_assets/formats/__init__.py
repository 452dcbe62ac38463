"""The formats of delivered objects: compression, object names, lines and columns.

Contains: what each exporter answers, compression, lines, snapshots, intervals, key lists, golden totals as CSV.
Add here: another format of a delivered object.
Does not contain: listing and opening objects (resources/landing/), work on parsed rows (transforms/).
"""
