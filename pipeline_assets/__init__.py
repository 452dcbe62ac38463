"""Tidemark's asset graph: an event pipeline that can recover."""
