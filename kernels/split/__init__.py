"""Parts of an array along an axis."""
