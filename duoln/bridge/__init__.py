"""duoln's functions and layers inside programs of other libraries: `duoln.bridge.torch` and `duoln.bridge.mlx`."""
