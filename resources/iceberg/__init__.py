"""The lakehouse: Iceberg tables, their catalog and what lies in the warehouse."""
