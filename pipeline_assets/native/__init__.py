"""Calls the optional library in Rust (`native/`): lines to Arrow columns, and hashes of rows of Arrow columns."""
