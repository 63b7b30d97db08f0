"""What the operating system and the machine give: files, processes, signals, memory, and the BLAS under NumPy."""
