"""Pictures: figures that matplotlib draws, where it is installed."""
