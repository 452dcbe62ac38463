"""A whole deployment on one machine without containers: what `make up` starts and `make down` ends."""
