"""The lakehouse: Iceberg tables, their catalog and the files in the warehouse.

Contains: reading metadata, staging and committing changes, the identity of the lake, removal of table files.
Add here: another thing that is asked of Iceberg, its catalog or the warehouse.
Does not contain: publishing several tables with the ledger (resources/publishing.py), what is due (pipeline_assets/).
"""
