"""What a slice would become, compared with what is published."""
