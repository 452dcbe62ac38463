"""Spark: the session, its jars and its JVM."""
