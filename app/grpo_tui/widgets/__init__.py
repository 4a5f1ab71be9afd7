"""One widget a file, by feature."""
