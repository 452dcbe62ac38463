"""`tidemark drill`: kills and collides loads of sample data on the deployment's own catalog and storage.

Contains: the sandbox, its vendor, the scenarios, the invariants that each must keep.
Add here: another scenario, or another invariant.
Does not contain: real faults of services (tests/faults.py).
"""
