"""One module per table: columns, layout, build and checks.

Contains: a module a table, the kinds of tables, the registry.
Add here: a table, and its line in the registry.
Does not contain: the order of a load (load/), transformations that several tables share (transforms/).
"""
