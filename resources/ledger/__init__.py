"""The ledger: records of deliveries, slices and runs in a SQL database.

Contains: the schema, opening the database, reading and writing each kind of record.
Add here: another kind of record, or another question about records.
Does not contain: the values that are recorded (pipeline_assets/domain/), decisions of loads (pipeline_assets/load/).
"""
