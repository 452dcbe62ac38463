"""Tables: their columns, layout, build and checks.

Contains: a module for events, aggregates and dimensions each, the kinds of tables, the registry.
Add here: a table, and its line in the registry.
Does not contain: the order of a load (load/), transformations that several tables share (transforms/).
"""
