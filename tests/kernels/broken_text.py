"""Kernels whose text is broken on purpose, as the stand-ins for a GPU compile them."""

from types import SimpleNamespace

from duoln.kernels import source


def break_text(monkeypatch, old, new, only=""):
    """From now on every CUDA kernel, or `only` that one, is compiled with `new` in the place of `old`. Returns the list of whether each text
    had it.
    """
    from duoln.kernels.launch import cuda as launch

    in_text, sound = [], launch.Kernel.compiled

    def compiled(self, macros):
        text = source.text(self.file)
        if only not in ("", self.entry):
            return sound(self, macros)
        in_text.append(old in text)
        options = tuple(f"-D{k}={v}" for k, v in macros.items())
        return launch.cupy.RawModule(code=text.replace(old, new), options=options).get_function(self.entry)

    monkeypatch.setattr(launch.Kernel, "compiled", compiled)
    for layouts in launch.Layouts.every:
        monkeypatch.setattr(layouts, "known", {})
    return in_text


def break_metal(monkeypatch, old, new):
    """The same for Metal's kernels."""
    from duoln.kernels.launch import metal

    in_text = []

    def broken(file):
        parts = source.metal(file)
        in_text.append(any(old in part for part in parts))
        return tuple(part.replace(old, new) for part in parts)

    monkeypatch.setattr(metal, "source", SimpleNamespace(metal=broken))
    return in_text
