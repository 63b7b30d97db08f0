"""Measuring: clocks, records with everything that a number depends on, and comparison with a peer."""
