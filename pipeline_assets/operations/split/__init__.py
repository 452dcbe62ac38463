"""Recovered objects among regular ones: found by evidence, and moved under the backfill grammar."""
