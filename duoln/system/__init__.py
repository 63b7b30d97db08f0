"""The operating system and the machine: files, processes, signals, memory, threads."""
