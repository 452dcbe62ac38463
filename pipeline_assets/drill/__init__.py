"""`tidemark drill`: loads of sample data are killed and meet each other on the deployment's own catalog and storage."""
