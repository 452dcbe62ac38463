"""A whole deployment on one machine without containers, which `make up` starts and `make down` stops."""
