"""What a slice would become, beside what is published."""
