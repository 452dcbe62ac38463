"""Calls the optional library in Rust (`native/`): lines to Arrow columns, and SHA-256 of many texts."""
