"""The functions of the array API standard, 2024.12, with their signatures; linear algebra and Fourier transforms by name."""

SIGNATURES = {
    # creation
    "arange": "start, /, stop=None, step=1, *, dtype=None, device=None", "asarray": "obj, /, *, dtype=None, device=None, copy=None",
    "empty": "shape, *, dtype=None, device=None", "empty_like": "x, /, *, dtype=None, device=None",
    "eye": "n_rows, n_cols=None, /, *, k=0, dtype=None, device=None", "from_dlpack": "x, /, *, device=None, copy=None",
    "full": "shape, fill_value, *, dtype=None, device=None", "full_like": "x, /, fill_value, *, dtype=None, device=None",
    "linspace": "start, stop, /, num, *, dtype=None, device=None, endpoint=True", "meshgrid": "*arrays, indexing='xy'",
    "ones": "shape, *, dtype=None, device=None", "ones_like": "x, /, *, dtype=None, device=None", "tril": "x, /, *, k=0", "triu": "x, /, *, k=0",
    "zeros": "shape, *, dtype=None, device=None", "zeros_like": "x, /, *, dtype=None, device=None",
    # dtypes
    "astype": "x, dtype, /, *, copy=True, device=None", "can_cast": "from_, to, /", "finfo": "type, /", "iinfo": "type, /", "isdtype": "dtype, kind",
    "result_type": "*arrays_and_dtypes", "__array_namespace_info__": "",
    # elementwise
    **dict.fromkeys(("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_invert", "ceil", "conj", "cos", "cosh", "exp", "expm1", "floor",
                     "imag", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "logical_not", "negative", "positive", "real", "reciprocal",
                     "round", "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc"), "x, /"),
    **dict.fromkeys(("add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "copysign", "divide", "equal",
                     "floor_divide", "greater", "greater_equal", "hypot", "less", "less_equal", "logaddexp", "logical_and", "logical_or", "logical_xor",
                     "maximum", "minimum", "multiply", "nextafter", "not_equal", "pow", "remainder", "subtract"), "x1, x2, /"),
    "clip": "x, /, min=None, max=None",
    # indexing
    "take": "x, indices, /, *, axis=None", "take_along_axis": "x, indices, /, *, axis=-1",
    # linear algebra
    "matmul": "x1, x2, /", "matrix_transpose": "x, /", "tensordot": "x1, x2, /, *, axes=2", "vecdot": "x1, x2, /, *, axis=-1",
    # manipulation
    "broadcast_arrays": "*arrays", "broadcast_to": "x, /, shape", "concat": "arrays, /, *, axis=0", "expand_dims": "x, /, *, axis=0",
    "flip": "x, /, *, axis=None", "moveaxis": "x, source, destination, /", "permute_dims": "x, /, axes", "repeat": "x, repeats, /, *, axis=None",
    "reshape": "x, /, shape, *, copy=None", "roll": "x, /, shift, *, axis=None", "squeeze": "x, /, axis", "stack": "arrays, /, *, axis=0",
    "tile": "x, repetitions, /", "unstack": "x, /, *, axis=0",
    # searching, sets, sorting
    **dict.fromkeys(("argmax", "argmin"), "x, /, *, axis=None, keepdims=False"), "count_nonzero": "x, /, *, axis=None, keepdims=False", "nonzero": "x, /",
    "searchsorted": "x1, x2, /, *, side='left', sorter=None", "where": "condition, x1, x2, /",
    **dict.fromkeys(("unique_all", "unique_counts", "unique_inverse", "unique_values"), "x, /"),
    **dict.fromkeys(("argsort", "sort"), "x, /, *, axis=-1, descending=False, stable=True"),
    # statistics, utilities
    **dict.fromkeys(("cumulative_prod", "cumulative_sum"), "x, /, *, axis=None, dtype=None, include_initial=False"),
    **dict.fromkeys(("max", "mean", "min", "all", "any"), "x, /, *, axis=None, keepdims=False"),
    **dict.fromkeys(("prod", "sum"), "x, /, *, axis=None, dtype=None, keepdims=False"),
    **dict.fromkeys(("std", "var"), "x, /, *, axis=None, correction=0.0, keepdims=False"),
    "diff": "x, /, *, axis=-1, n=1, prepend=None, append=None",
    # the extension linalg; what it shares with the main namespace is above
    **{f"linalg.{name}": signature for name, signature in {
        "cholesky": "x, /, *, upper=False", "cross": "x1, x2, /, *, axis=-1", "det": "x, /", "diagonal": "x, /, *, offset=0", "eigh": "x, /", "eigvalsh": "x, /",
        "inv": "x, /", "matrix_norm": "x, /, *, keepdims=False, ord='fro'", "matrix_power": "x, n, /", "matrix_rank": "x, /, *, rtol=None", "outer": "x1, x2, /",
        "pinv": "x, /, *, rtol=None", "qr": "x, /, *, mode='reduced'", "slogdet": "x, /", "solve": "x1, x2, /", "svd": "x, /, *, full_matrices=True",
        "svdvals": "x, /", "trace": "x, /, *, offset=0, dtype=None", "vector_norm": "x, /, *, axis=None, keepdims=False, ord=2"}.items()},
    # the extension fft
    **dict.fromkeys([f"fft.{name}" for name in ("fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
                                                "rfftfreq", "rfftn")], ""),
}
