"""`tidemark`: the same jobs and questions from the shell."""
