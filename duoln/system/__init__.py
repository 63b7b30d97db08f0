"""The operating system and the machine: files, processes, signals, memory, products, CUDA graphs."""
