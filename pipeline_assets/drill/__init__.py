"""`tidemark drill`: kills and collides loads of sample data on the deployment's own catalog and storage."""
