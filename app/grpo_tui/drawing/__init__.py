"""From numbers and texts to what a terminal can show; knows no widget."""
