"""duoln's functions and layers inside programs of other libraries: `duoln.bridge.torch` and `duoln.bridge.mlx`."""

from duoln.core.public_names import only_public

__all__: list[str] = []
only_public(globals())
