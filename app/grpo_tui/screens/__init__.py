"""One screen or dialog a file."""
