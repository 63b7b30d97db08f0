"""Everything that one device can show, an NVIDIA GPU or a Mac, in one command of less than ten minutes.

    duoln bench survey --out DIR

measures CuPy on an NVIDIA GPU. With `--backend mlx` it measures MLX on a Mac. It runs from a checkout that is not
installed; it needs the array library, NumPy, pluggy and rich, and compares with PyTorch where that is installed.
`parts` says what is measured, `running` runs it, `report` says what it found.
"""
