"""What an operator asks of published data; nothing is changed."""
