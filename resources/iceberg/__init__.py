"""The lakehouse: Iceberg tables, their catalog and the files in the warehouse."""
