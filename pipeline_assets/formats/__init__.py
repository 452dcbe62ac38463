"""What an export looks like: bytes, names, lines and columns, before anything is made of them."""
