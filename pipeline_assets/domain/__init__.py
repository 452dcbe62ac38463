"""Pure rules: no Dagster, no Spark, no I/O.

Contains: values and rules, one subject a module.
Add here: a rule or a value that several layers use.
Does not contain: what is asked of outside systems (resources/), tables (tables/), formats of exports (formats/).
"""
