"""CUDA kernels whose text is broken on purpose, as the stand-in for a GPU compiles them."""

from duoln.kernels import source


def break_text(monkeypatch, old, new):
    """From now on every kernel is compiled with `new` in the place of `old`. Returns the list of whether each text had it."""
    from duoln.kernels.launch import cuda as launch

    in_text = []

    def compiled(self, macros):
        text = source.text(self.file)
        in_text.append(old in text)
        options = tuple(f"-D{k}={v}" for k, v in macros.items())
        return launch.cupy.RawModule(code=text.replace(old, new), options=options).get_function(self.entry)

    monkeypatch.setattr(launch.Kernel, "compiled", compiled)
    for layouts in launch.Layouts.every:
        monkeypatch.setattr(layouts, "known", {})
    return in_text
