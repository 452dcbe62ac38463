"""Recovered objects that lie among regular ones: found by evidence, moved under the backfill grammar."""
