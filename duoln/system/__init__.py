"""What the operating system and the machine give: files, processes, signals, memory, products, CUDA graphs."""
