"""Spark: the session, its jars and its JVM.

Contains: starting and configuring the session, jars and class archive, the workers' environment.
Add here: another setting of a session, or another check of its environment.
Does not contain: tables (resources/iceberg/), transformations (pipeline_assets/transforms/).
"""
